// Lesson 11: uneven inputs. Shards are rarely equal: files of unequal length, samples that were
// filtered out, a last batch that is not full.
//
//   ending.cpp    one rank has a batch more: who takes part in its reduction?
//   weights.cpp   batches of unequal size: what does a sample count?
//
// Run:  ./lockstep run 11_uneven_inputs
//       11_uneven_inputs --variant uneven-batches --world-size 4
#include <lockstep/lesson/lesson.h>

lockstep::Part ending_part();
lockstep::Part weights_part();

int main(int argc, char** argv) {
  return lockstep::lesson_main(
      argc, argv,
      {.name = "11_uneven_inputs",
       .title = "Uneven inputs: a batch more, and a batch that counts more",
       .parts = {ending_part(), weights_part()}});
}
