// Lesson 09, part "failures": a rank that does not come, or too late.
//
// Concept:  the others cannot know why a rank is missing: it may be dead, in an exception's
//           handler, or busy. The launcher can: it sees the exit, the signal, and each rank's last
//           collective.
// Symptom:  the survivors report "connection closed by peer" or a timeout, and a killed rank
//           reports nothing.
#include <lockstep/base/error.h>
#include <lockstep/train/agreement.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/models.h>
#include <lockstep/train/watched.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;  // per rank
constexpr int kSteps = 6;
constexpr std::size_t kAt = 3;  // the step at which it happens

// A rank that comes late waits for this file, so it comes when another has given up, never sooner.
std::filesystem::path sign_of_giving_up(const RankContext& context) {
  return context.folder() / "given_up";
}
void until_others_gave_up(const RankContext& context) {
  while (!std::filesystem::exists(sign_of_giving_up(context)))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool happens_here(const RankContext& context, std::size_t step) {
  return step == kAt && context.rank() == context.world_size() - 1;
}

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  context.group()->setTimeout(context.patience());
  context.intent({.global_batch = kBatch * world_size, .loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * world_size * kSteps);
  Mlp module(784, 32, 10);
  module->to(context.device());
  DistributedDataParallel<Mlp> model(module, context.group());
  SGD optimizer(model.parameters(), 0.05);

  const auto batches = batches_of(context, kSteps, kBatch);
  for (std::size_t step = 0; step < batches.size(); ++step) {
    const auto& ids = batches[step];
    if (fault("near-miss-exception-agreed-on")) {
      // Near miss: a batch cannot be read, and all ranks leave that step out.
      if (all_agree(*context.group(), happens_here(context, step)).any_yes()) continue;
    }
    const auto batch = take(data, ids);
    if (fault("peer-dies") && happens_here(context, step))
      std::raise(SIGKILL);  // as the kernel does where there is no memory left
    if (fault("one-rank-raises") && happens_here(context, step))
      throw Error("sample " + std::to_string(ids.front()) + " cannot be decoded");
    if (fault("slow-rank") && happens_here(context, step)) until_others_gave_up(context);
    // Near miss: slow, and within the others' patience.
    if (fault("near-miss-slow-within-timeout") && happens_here(context, step))
      std::this_thread::sleep_for(std::chrono::milliseconds(700));
    optimizer.zero_grad();
    const auto outputs = model(batch.inputs.to(context.device()));
    cross_entropy(outputs, batch.targets.to(context.device())).mean().backward();
    optimizer.step();

    if (fault("rank-zero-long-work") && step == kAt && context.rank() == 0) {
      const torch::NoGradGuard no_grad;
      evaluate(context, module, data);
      until_others_gave_up(context);  // a long evaluation
    } else if (fault("near-miss-short-evaluation") && step == kAt && context.rank() == 0) {
      const torch::NoGradGuard no_grad;
      evaluate(context, module, data);
    }
  }
  barrier(*context.group());
}

class GivesUp final : public AtTheEnd {
 public:
  using AtTheEnd::AtTheEnd;

  void finish() override {
    AtTheEnd::finish();
    // Last: a thread of Gloo's records the failure, maybe after this one has heard of it.
    if (std::current_exception()) std::ofstream(sign_of_giving_up(context())) << "gave up\n";
  }
};

}  // namespace

lockstep::Part failures_part() {
  const Oracle oracle{"ranks that came to the end of training", ranks_at_the_end};
  return {.name = "failures",
          .run = train,
          .broken = {{.slug = "peer-dies",
                      .what = "the last rank is killed in the middle of training",
                      .oracle = oracle,
                      .crashes = true},
                     {.slug = "one-rank-raises",
                      .what = "the last rank cannot read a sample, and throws",
                      .oracle = oracle,
                      .crashes = true},
                     {.slug = "slow-rank",
                      .what = "the last rank comes to a step when the others have given up",
                      .oracle = oracle,
                      .crashes = true},
                     {.slug = "rank-zero-long-work",
                      .what = "rank 0 evaluates for longer than the others wait",
                      .oracle = oracle,
                      .crashes = true}},
          .near_misses = {{.name = "near-miss-exception-agreed-on",
                           .slug = "one-rank-raises",
                           .naive_check = "a rank cannot read its batch"},
                          {.name = "near-miss-slow-within-timeout",
                           .slug = "slow-rank",
                           .naive_check = "a step takes one rank a hundred times as long"},
                          {.name = "near-miss-short-evaluation",
                           .slug = "rank-zero-long-work",
                           .naive_check = "rank 0 evaluates while the others wait"}},
          .notes = notes<GivesUp>};
}
