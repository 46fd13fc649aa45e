// Lesson 08: the learning rate on W ranks. W times the batch is 1/W of the updates, and every
// length that was counted in updates changes with it.
//
//   scaling.cpp   SGD: W times the batch, W times the rate
//   adam.cpp      Adam: W times the rate is W times the step, for any batch
//   warmup.cpp    why a run may not start with the scaled rate at once
//   schedule.cpp  how long a schedule is, in which unit, and who steps it
//
// Run:  ./lockstep run 08_lr_scaling
//       08_lr_scaling --variant schedule-unit-mismatch --world-size 4
#include <lockstep/lesson/lesson.h>

lockstep::Part scaling_part();
lockstep::Part adam_part();
lockstep::Part warmup_part();
lockstep::Part schedule_part();

int main(int argc, char** argv) {
  return lockstep::lesson_main(
      argc, argv,
      {.name = "08_lr_scaling",
       .title = "The learning rate on W ranks: how large, from when, and for how long",
       .parts = {scaling_part(), adam_part(), warmup_part(), schedule_part()}});
}
