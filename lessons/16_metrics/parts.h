// The parts of lesson 16, one file each.
#pragma once

#include <lockstep/lesson/lesson.h>

lockstep::Part evaluation_part();
lockstep::Part contrastive_part();
lockstep::Part logged_loss_part();
