// Lesson 03: DistributedDataParallel. One process per device, each with its own copy of the model;
// what keeps the copies equal is that all start equal and all apply the same mean gradient.
//
//   by_hand.cpp        the three things DDP does, written out: broadcast, all-reduce, divide
//   wrapper.cpp        the same through the wrapper, and two ways around it
//   made_up_data.cpp   random data that each rank makes for itself
//
// Run:  ./lockstep run 03_ddp
//       03_ddp --variant sum-not-mean --world-size 4
#include <lockstep/lesson/lesson.h>

lockstep::Part made_up_data_part();
lockstep::Part by_hand_part();
lockstep::Part wrapper_part();

int main(int argc, char** argv) {
  return lockstep::lesson_main(
      argc, argv,
      {.name = "03_ddp",
       .title = "DDP: equal at the start, the same mean gradient ever after",
       .parts = {by_hand_part(), wrapper_part(), made_up_data_part()}});
}
