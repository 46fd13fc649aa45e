// The parts of lesson 13, one file each.
#pragma once

#include <lockstep/lesson/lesson.h>

lockstep::Part clipping_part();
lockstep::Part scaling_part();
lockstep::Part overflow_part();
lockstep::Part precision_part();
