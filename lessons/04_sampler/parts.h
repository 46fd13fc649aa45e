// The parts of lesson 04, one file each.
#pragma once

#include <lockstep/lesson/lesson.h>

lockstep::Part sharding_part();
lockstep::Part stream_part();
lockstep::Part evaluation_part();
lockstep::Part quick_evaluation_part();
lockstep::Part libtorch_sampler_part();
lockstep::Part tiny_dataset_part();
