// Lesson 09, part "mismatches": all ranks come, and their calls differ.
//
// Concept:  only the place in the order makes calls belong together. Gloo does not compare
//           operation, sizes, dtype, reduce operation or root before the bytes move; each rank must
//           make the same call.
// Symptom:  some differences give a hang, or an error that names a socket. Others give no error and
//           wrong numbers: bytes of one dtype are added as those of another.
#include <lockstep/train/agreement.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kClasses = 10;
constexpr std::int64_t kSamples = 100;  // of a rank in a round
constexpr int kRounds = 2;

// Labels of a rank's samples in a round, counted by class.
at::Tensor class_counts(const TensorData& data, int round, int rank, int world_size) {
  const auto own = data.targets.narrow(0, kSamples * (round * world_size + rank), kSamples);
  return own.bincount({}, kClasses).to(at::kFloat);
}

// Of a round, by all ranks together.
struct Counts {
  at::Tensor sum, choice, most;
};

// A near miss: all ranks begin both in one order, and wait for them in different ones.
void wait_in_either_order(c10d::ProcessGroup& group, at::Tensor& sum, at::Tensor& choice, int root,
                          bool sending_first) {
  std::vector<at::Tensor> first{sum}, second{choice};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  const auto adding = group.allreduce(first), sending = group.broadcast(second, options);
  (sending_first ? sending : adding)->wait();
  (sending_first ? adding : sending)->wait();
}

// In the second round the last rank differs.
bool differs(const RankContext& context, int round) {
  return round + 1 == kRounds && context.rank() == context.world_size() - 1;
}

// Each rank counts the labels of its own samples. The counts are added, the last rank's most
// frequent class is sent to all, and each class's largest count is found.
Counts count(RankContext& context, const Fault& fault, const TensorData& data, int round) {
  const int world_size = context.world_size(), rank = context.rank();
  auto& group = *context.group();
  const auto own = class_counts(data, round, rank, world_size).to(context.device());
  auto sum = own.clone(), most = own.clone();
  auto choice = own.argmax().reshape({1}).to(at::kFloat);

  if (fault("shape-mismatch") && differs(context, round))
    sum = sum.narrow(0, 0, kClasses - 1).contiguous();
  // Near miss: shorter, and filled up with what was cut off.
  if (fault("near-miss-filled-up") && differs(context, round))
    sum = at::cat({own.narrow(0, 0, 5), own.narrow(0, 5, kClasses - 5)});
  if (fault("dtype-mismatch") && differs(context, round)) sum = sum.to(at::kInt);  // as many bytes
  // Near miss: counted in another type, and converted.
  if (fault("near-miss-converted") && differs(context, round))
    sum = sum.to(at::kInt).to(at::kFloat);

  int root = world_size - 1;
  if (fault("root-mismatch") && round + 1 == kRounds) root = rank;
  if (fault("order-mismatch") && differs(context, round)) {
    broadcast(group, choice, root);
    all_reduce(group, sum);
  } else if (fault("near-miss-waited-in-another-order")) {
    wait_in_either_order(group, sum, choice, root, differs(context, round));
  } else {
    all_reduce(group, sum);
    broadcast(group, choice, root);
  }
  auto op = c10d::ReduceOp::MAX;
  if (fault("reduce-op-mismatch") && differs(context, round)) op = c10d::ReduceOp::SUM;
  all_reduce(group, most, op);

  // Near miss: each rank is the root once, on all ranks.
  if (fault("near-miss-every-root-in-turn"))
    for (int each = 0; each < world_size; ++each) broadcast(group, choice, each);
  // Near miss: added too, by all ranks.
  if (fault("near-miss-two-operations")) {
    auto again = own.clone();
    all_reduce(group, again, c10d::ReduceOp::SUM);
  }
  return {sum, choice, most};
}

// Whether that is what one process counts.
bool is_right(const Counts& counts, const TensorData& data, int round, int world_size) {
  auto sum = at::zeros({kClasses}), most = at::zeros({kClasses});
  for (int rank = 0; rank < world_size; ++rank) {
    sum += class_counts(data, round, rank, world_size);
    most = at::max(most, class_counts(data, round, rank, world_size));
  }
  const auto choice = class_counts(data, round, world_size - 1, world_size).argmax();
  return at::equal(counts.sum.cpu().to(at::kFloat), sum) && at::equal(counts.most.cpu(), most) &&
         counts.choice.item().toLong() == choice.item().toLong();
}

void count_in_rounds(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  context.group()->setTimeout(context.patience());
  const auto data = fashion_mnist_or_synthetic(Split::train, kRounds * kSamples * world_size);
  for (int round = 0; round < kRounds; ++round) {
    const auto counts = count(context, fault, data, round);
    add_figure(context, "right", is_right(counts, data, round, world_size) ? 1 : 0);
    context.write();  // Gloo may abort the process in the next round
  }
}

Measured right_rounds(const Outcomes& outcomes) {
  double right = 0;
  for (const auto& outcome : outcomes)
    if (const auto found = outcome.figures.find("right"); found != outcome.figures.end())
      for (const double round : found->second) right += round;
  return {.expected = static_cast<double>(outcomes.size() * kRounds), .observed = right};
}

}  // namespace

lockstep::Part mismatches_part() {
  const Oracle oracle{"rounds in which a rank holds what one process counts, over all ranks",
                      right_rounds};
  return {
      .name = "mismatches",
      .run = count_in_rounds,
      .broken = {{.slug = "shape-mismatch",
                  .what = "the last rank counts one class less",
                  .oracle = oracle,
                  .crashes = true},
                 {.slug = "dtype-mismatch",
                  .what = "the last rank counts in int32, the others in float32",
                  .oracle = oracle},
                 {.slug = "order-mismatch",
                  .what = "the last rank sends before it adds",
                  .oracle = oracle,
                  .crashes = true},
                 {.slug = "root-mismatch",
                  .what = "every rank names itself the sender",
                  .oracle = oracle,
                  .crashes = true},
                 {.slug = "reduce-op-mismatch",
                  .what = "the last rank adds where the others look for the largest",
                  .oracle = oracle}},
      .near_misses = {{.name = "near-miss-filled-up",
                       .slug = "shape-mismatch",
                       .naive_check = "the ranks hold unequally many numbers"},
                      {.name = "near-miss-converted",
                       .slug = "dtype-mismatch",
                       .naive_check = "the ranks' tensors are of different dtypes"},
                      {.name = "near-miss-waited-in-another-order",
                       .slug = "order-mismatch",
                       .naive_check = "the ranks wait for their collectives in different orders"},
                      {.name = "near-miss-every-root-in-turn",
                       .slug = "root-mismatch",
                       .naive_check = "broadcasts with different roots"},
                      {.name = "near-miss-two-operations",
                       .slug = "reduce-op-mismatch",
                       .naive_check = "the same counts are reduced with MAX and with SUM"}}};
}
