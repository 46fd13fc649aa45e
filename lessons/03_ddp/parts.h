// The parts of lesson 03, one file each.
#pragma once

#include <lockstep/lesson/lesson.h>

lockstep::Part made_up_data_part();
lockstep::Part by_hand_part();
lockstep::Part wrapper_part();
