// Lesson 04: who trains on which sample. In one epoch every sample belongs to one rank, and to one
// only.
//
//   sharding.cpp          splitting a data set once: by a sampler, or by files
//   stream.cpp            data without a length: skip what belongs to others
//   evaluation.cpp        counting every test sample once
//   quick_evaluation.cpp  comparing two evaluations that look at a part of the test set
//   libtorch_sampler.cpp  the tail that LibTorch's own sampler never deals out
//   tiny_dataset.cpp      fewer samples than ranks, or than a batch
//
// Run:  ./lockstep run 04_sampler
//       04_sampler --variant sharded-twice --world-size 4
#include <lockstep/lesson/lesson.h>

lockstep::Part sharding_part();
lockstep::Part stream_part();
lockstep::Part evaluation_part();
lockstep::Part quick_evaluation_part();
lockstep::Part libtorch_sampler_part();
lockstep::Part tiny_dataset_part();

int main(int argc, char** argv) {
  return lockstep::lesson_main(
      argc, argv,
      {.name = "04_sampler",
       .title = "Sharding: every sample to one rank, once an epoch",
       .parts = {sharding_part(), stream_part(), evaluation_part(), quick_evaluation_part(),
                 libtorch_sampler_part(), tiny_dataset_part()}});
}
