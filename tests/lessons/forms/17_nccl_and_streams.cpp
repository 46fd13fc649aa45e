#include "../forms.h"

namespace lockstep::testing {

namespace {

std::vector<int> every_rank(int world_size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size; ++rank) ranks.push_back(rank);
  return ranks;
}
// Of two that differ, neither is the odd one.
std::vector<int> the_odd_one(int world_size) {
  return world_size == 2 ? std::vector<int>{0, 1} : std::vector<int>{0};
}
FormCase on_gpus(FormCase form) {
  form.needs_gpu = true;
  return form;
}
FormCase named(FormCase form, std::vector<int> (*ranks)(int)) {
  form.ranks = ranks;
  return form;
}

// The last of two rounds never ends.
double first_round(int world_size) {
  return world_size;
}
// A bucket of zeros, in place of the sum 1 + ... + W.
double whole_mean(int world_size) {
  return world_size * (world_size + 1) / 2.0;
}

}  // namespace

std::vector<FormCase> forms_17() {
  return {
      on_gpus(right("correct-communicators")),
      on_gpus(named(exactly("communicator-order", first_round, 2, 0, "crash"), the_odd_one)),
      on_gpus(right("near-miss-waited-in-another-order")),
      on_gpus(right("correct-streams")),
      on_gpus(named(exactly("wrong-stream", whole_mean, 1, 0.001), every_rank)),
      on_gpus(right("near-miss-same-stream")),
      on_gpus(right("near-miss-host-waits")),
      right("correct-shared-memory"),
      named(exactly("small-shared-memory", always(0), 2, 0, "crash"), every_rank),
      right("near-miss-another-way"),
      right("near-miss-one-batch-ahead"),
  };
}

}  // namespace lockstep::testing
