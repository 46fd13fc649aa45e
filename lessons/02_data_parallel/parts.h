// The parts of lesson 02, one file each.
#pragma once

#include <lockstep/lesson/lesson.h>

lockstep::Part batch_part();
lockstep::Part buffers_part();
lockstep::Part bottleneck_part();
