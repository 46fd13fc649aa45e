// Lesson 09: collectives that hang. Every rank of the group must enter the same collective, in the
// same place of the order. If a rank does not, others wait for it.
//
//   branches.cpp     a branch that not all ranks take: a barrier, an early stop, an evaluation
//   mismatches.cpp   all ranks come, with other sizes, dtypes, operations, roots or order
//   joining.cpp      making a group is a collective too
//   failures.cpp     a rank that dies, raises, or comes too late
//   async.cpp        an asynchronous collective: wait before you read
//
// Run:  ./lockstep run 09_hanging_collective
//       09_hanging_collective --variant rank-conditional-collective --world-size 4
#include <lockstep/lesson/batches.h>
#include <lockstep/train/distributed_sampler.h>

#include "parts.h"

std::vector<std::vector<std::int64_t>> batches_of(const lockstep::RankContext& context, int steps,
                                                  std::int64_t size) {
  std::vector<std::vector<std::int64_t>> batches;
  for (int step = 0; step < steps; ++step)
    batches.push_back(lockstep::global_batch(step * context.world_size() + context.rank(), size));
  lockstep::tell_pass(0, size * context.world_size() * steps, batches);
  return batches;
}

int main(int argc, char** argv) {
  return lockstep::lesson_main(argc, argv,
                               {.name = "09_hanging_collective",
                                .title = "Hanging collectives: who is missing, and where",
                                .parts = {branches_part(), mismatches_part(), joining_part(),
                                          failures_part(), async_part()}});
}
