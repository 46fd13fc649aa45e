// The parts of lesson 07, one file each.
#pragma once

#include <lockstep/lesson/lesson.h>

lockstep::Part loading_part();
lockstep::Part state_part();
lockstep::Part position_part();
lockstep::Part writing_part();
lockstep::Part nodes_part();
lockstep::Part killed_part();
