// The parts of this lesson.
#pragma once

#include <lockstep/lesson/lesson.h>

lockstep::Part scaling_part();
lockstep::Part adam_part();
lockstep::Part warmup_part();
lockstep::Part schedule_part();
