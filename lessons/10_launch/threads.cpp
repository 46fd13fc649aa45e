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

void train(RankContext& context, const Fault& fault) {
  auto& probes = context.probes();
  const int ranks = context.world_size();
  const int processors = std::max(2, static_cast<int>(processors_of_this_process().size()));
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * ranks);

  if (fault("near-miss-all-threads-for-one")) {
    // While the others wait, rank 0 may use all processors.
    if (context.rank() == 0) {
      at::set_num_threads(processors);
      probes.tell(record::place_of_this_process());
      add_figure(context, "mean", data.inputs.mean().item<double>());
    }
    barrier(*context.group());
  }
  int threads = std::max(1, processors / ranks);
  if (fault("thread-oversubscription")) threads = processors;  // PITFALL thread-oversubscription
  at::set_num_threads(threads);
  probes.tell(record::place_of_this_process());

  TracedTrainer trainer(context, data, /*hidden=*/512);
  trainer.begin_epoch(0);
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t step = 0; step < kSteps; ++step) {
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < kBatch; ++i)
      ids.push_back((step * ranks + context.rank()) * kBatch + i);
    trainer.step(ids);
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  trainer.end_epoch();
  add_figure(context, "step_ms", took.count() / kSteps);
  add_figure(context, "threads", at::get_num_threads());
  add_figure(context, "processors", processors);
}

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
                           .naive_check = "a rank sets its threads to the number of processors"}}};
}
