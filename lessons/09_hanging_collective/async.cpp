// Lesson 09, part "async": a collective that runs while the program goes on.
//
// Concept:  an asynchronous collective returns at once, and its tensor is the program's again when
//           wait() has returned. Until then it may hold the old numbers, the new ones, or some of
//           each.
// Symptom:  none, as long as the network is faster than the program. Here the last rank begins when
//           the others have read, so that it shows every time.
#include <filesystem>
#include <fstream>
#include <thread>

#include "parts.h"

namespace {

using namespace lockstep;

// A file that says that this rank has read.
std::filesystem::path sign_of(const RankContext& context, int rank) {
  return context.folder() / ("read_" + std::to_string(rank));
}

void until_others_read(const RankContext& context) {
  for (int other = 0; other + 1 < context.world_size(); ++other)
    while (!std::filesystem::exists(sign_of(context, other)))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// What the tensor holds now, and a file that says that it was read.
at::Tensor read(RankContext& context, const at::Tensor& sum) {
  auto held = sum.clone();
  context.told().async_result("sum", "used", held);
  std::ofstream(sign_of(context, context.rank())) << "read\n";
  return held;
}

// The sum of all ranks' numbers, as a rank has read it.
at::Tensor sum_of_ranks(RankContext& context, const Fault& fault) {
  const int rank = context.rank();
  auto sum = at::full({4}, rank + 1.0, at::device(context.device()).dtype(at::kFloat));
  std::vector<at::Tensor> tensors{sum};
  at::Tensor result;
  if (fault("async-work-not-waited")) {
    // Makes certain that the others read before the sum is there.
    if (rank + 1 == context.world_size()) until_others_read(context);
    const auto work = context.group()->allreduce(tensors);
    result = read(context, sum);
    work->wait();
  } else if (fault("near-miss-polled-until-done")) {
    // Near miss: no wait() before the read, and the work says that it is done.
    const auto work = context.group()->allreduce(tensors);
    while (!work->isCompleted()) std::this_thread::yield();
    result = read(context, sum);
    work->wait();
  } else {
    const auto work = context.group()->allreduce(tensors);
    work->wait();
    result = read(context, sum);
  }
  context.told().async_result("sum", "waited", sum);
  return result;
}

void reduce(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  const double right = world_size * (world_size + 1) / 2.0;
  add_figure(context, "off", (sum_of_ranks(context, fault) - right).abs().max().item().toDouble());
}

Measured off(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "off"), .tolerance = 0};
}

}  // namespace

lockstep::Part async_part() {
  return {.name = "async",
          .run = reduce,
          .broken = {{.slug = "async-work-not-waited",
                      .what = "a sum is read before the collective is waited for",
                      .oracle = {"what was read, off the sum of all ranks", off}}},
          .near_misses = {{.name = "near-miss-polled-until-done",
                           .slug = "async-work-not-waited",
                           .naive_check = "the result is read with no wait() before"}}};
}
