// Lesson 10, part "threads": the ranks of a node share its processors.
//
// Concept:  by default torch computes with a thread for each core that the process may use: W ranks
//           on one node use W times as many as it has. OMP_NUM_THREADS = processors / ranks, as our
//           launcher sets it (torchrun: 1; srun can bind each task to cores of its own).
// Symptom:  time only: a thread loses its processor in the middle of its work, and the others of
//           its rank wait for it. What it costs here: ./lockstep bench thread_oversubscription.
#include <lockstep/base/processors.h>
#include <lockstep/lesson/training.h>

#include <chrono>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr int kSteps = 12;
constexpr std::int64_t kBatch = 64;  // per rank

// Two where there is one, so that this shows there, too.
int processors_here() {
  return std::max(2, static_cast<int>(processors_of_this_process().size()));
}

// A near miss: while the others wait, rank 0 may use all processors.
void look_at_data_on_rank_zero(RankContext& context, const TensorData& data, int processors) {
  if (context.rank() == 0) {
    at::set_num_threads(processors);
    tell_place(context);
    add_figure(context, "mean", data.inputs.mean().item<double>());
  }
  barrier(*context.group());
}

void train(RankContext& context, const Fault& fault) {
  const int ranks = context.world_size();
  const int processors = processors_here();
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * ranks);

  if (fault("near-miss-all-threads-for-one")) look_at_data_on_rank_zero(context, data, processors);
  const int threads =
      fault("thread-oversubscription") ? processors : std::max(1, processors / ranks);
  at::set_num_threads(threads);
  tell_place(context);

  Trainer trainer(context, data, /*hidden=*/512);
  for (const auto& ids : consecutive_batches(context, kSteps, kBatch)) trainer.step(ids);
}

// Writes down the threads that were used, and how long a step took.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&) : Notes(job) {}

  void fetch(const Fetch& fetch) override {
    if (steps_ == 0) begin_ = std::chrono::steady_clock::now();
    Notes::fetch(fetch);
  }
  void update_ended(torch::optim::Optimizer& optimizer) override {
    took_ = std::chrono::steady_clock::now() - begin_;
    ++steps_;
    Notes::update_ended(optimizer);
  }
  void finish() override {
    Notes::finish();
    if (steps_ > 0) add_figure(context(), "step_ms", took_.count() / steps_);
    add_figure(context(), "threads", at::get_num_threads());
    add_figure(context(), "processors", processors_here());
  }

 private:
  int steps_ = 0;
  std::chrono::steady_clock::time_point begin_;
  std::chrono::duration<double, std::milli> took_{};
};

// A rank has one thread at least, also where there are more ranks than processors.
Measured threads_too_many(const Outcomes& outcomes) {
  double threads = 0;
  for (const auto& outcome : outcomes) threads += outcome.figures.at("threads").at(0);
  const double room =
      std::max(largest(outcomes, "processors"), static_cast<double>(outcomes.size()));
  return {.expected = 0, .observed = std::max(0.0, threads - room)};
}

}  // namespace

Part threads_part() {
  return {.name = "threads",
          .run = train,
          .broken = {{.slug = "thread-oversubscription",
                      .what = "every rank uses a thread for each processor",
                      .oracle = {"threads beyond one for each processor and each rank",
                                 threads_too_many}}},
          .near_misses = {{.name = "near-miss-all-threads-for-one",
                           .slug = "thread-oversubscription",
                           .naive_check = "a rank sets its threads to the number of processors"}},
          .notes = notes<OwnNotes>};
}
