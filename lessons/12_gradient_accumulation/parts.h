// The parts of lesson 12, one file each.
#pragma once

#include <lockstep/lesson/lesson.h>

lockstep::Part syncing_part();
lockstep::Part dividing_part();
lockstep::Part uneven_part();
lockstep::Part last_window_part();
