// The parts of lesson 11, one file each.
#pragma once

#include <lockstep/lesson/lesson.h>

lockstep::Part ending_part();
lockstep::Part weights_part();
