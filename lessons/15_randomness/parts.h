// The parts of lesson 15, one file each.
#pragma once

#include <lockstep/lesson/lesson.h>

lockstep::Part augmentation_part();
lockstep::Part workers_part();
