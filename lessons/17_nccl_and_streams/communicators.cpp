// Lesson 17, part "communicators": two communicators in one process.
//
// Concept:  a communicator is what NCCL knows of a group of ranks: its peers, their connections,
//           buffers. Making one is a collective. A collective on it is a kernel that waits, on the
//           GPU, for the peers' kernels: what comes after it on the stream, or in a program that
//           waits for it, waits too. So all ranks must call their communicators in one order.
// Symptom:  a hang with no error: every rank is inside a collective that some peer has not entered.
//           It comes with the second communicator: data and tensor parallelism, a metric beside the
//           gradients, two libraries.
#include "parts.h"
#ifdef LOCKSTEP_HAVE_CUDA
#include "communicator.h"
#endif

namespace {

using namespace lockstep;

constexpr int kRounds = 2;

#ifdef LOCKSTEP_HAVE_CUDA
// Gradients are summed over communicator A, in place, and counts over B, out of place. The fault is
// in the last round.
void reduce(RankContext& context, const Fault& fault) {
  use_own_gpu(context);
  const Stream stream(1);
  Communicator a(context, "A", stream), b(context, "B", stream);
  const int world_size = context.world_size(), rank = context.rank();
  const float sum = static_cast<float>(world_size * (world_size + 1)) / 2;

  for (int round = 0; round < kRounds; ++round) {
    const Floats gradients(1000, static_cast<float>(rank + 1));
    const Floats count(1, 1), total(1, 0);
    if (fault("communicator-order") && rank == 0 && round + 1 == kRounds) {
      b.wait(b.all_reduce(count, total));
      a.wait(a.all_reduce(gradients, gradients));
    } else if (fault("near-miss-waited-in-another-order")) {
      // Near miss: all ranks begin them in one order, and wait for them in different ones.
      const bool is_odd = rank == 0 && round + 1 == kRounds;
      const auto first = a.all_reduce(gradients, gradients), second = b.all_reduce(count, total);
      if (is_odd) b.wait(second);
      a.wait(first);
      if (!is_odd) b.wait(second);
    } else {
      a.wait(a.all_reduce(gradients, gradients));
      b.wait(b.all_reduce(count, total));
    }
    const bool right =
        gradients.worst(sum) == sum && total.worst(static_cast<float>(world_size)) == world_size;
    add_figure(context, "right", right ? 1 : 0);
  }
}
#else
void reduce(RankContext&, const Fault&) {
  built_without_cuda();
}
#endif

Measured right_rounds(const Outcomes& outcomes) {
  double right = 0;
  for (const auto& outcome : outcomes)
    if (const auto found = outcome.figures.find("right"); found != outcome.figures.end())
      for (const double round : found->second) right += round;
  return {.expected = static_cast<double>(outcomes.size() * kRounds), .observed = right};
}

}  // namespace

Part communicators_part() {
  return {.name = "communicators",
          .run = reduce,
          .broken = {{.slug = "communicator-order",
                      .what = "rank 0 adds counts before gradients, the others after",
                      .oracle = {"rounds in which a rank holds the right sums, over all ranks",
                                 right_rounds},
                      .crashes = true}},
          .near_misses = {{.name = "near-miss-waited-in-another-order",
                           .slug = "communicator-order",
                           .naive_check = "the ranks wait for two communicators in different "
                                          "orders"}},
          .participants = Participants::strangers};
}
