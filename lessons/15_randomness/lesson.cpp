// Lesson 15: random numbers. Which of them must be equal on all ranks, and which must not.
//
//   augmentation.cpp   one seed to make the models equal, then another on every rank
//   workers.cpp        loader workers that copy a generator
//   augment.h          the augmentation itself, and what the oracle counts
//
// Run:  ./lockstep run 15_randomness
//       15_randomness --variant worker-streams-copied --world-size 3
#include <lockstep/lesson/lesson.h>

lockstep::Part augmentation_part();
lockstep::Part workers_part();

int main(int argc, char** argv) {
  return lockstep::lesson_main(argc, argv,
                               {.name = "15_randomness",
                                .title = "Randomness: equal models, different random numbers",
                                .parts = {augmentation_part(), workers_part()}});
}
