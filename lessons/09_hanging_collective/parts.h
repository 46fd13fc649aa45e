// The parts of lesson 09, one file each, and what they share.
#pragma once

#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>

#include <cstdint>
#include <exception>
#include <vector>

// Beside every part that may hang, for its oracle: whether a rank came to the end of its work, in a
// group.
class AtTheEnd : public lockstep::Notes {
 public:
  AtTheEnd(lockstep::RankContext& job, const lockstep::Fault&) : Notes(job) {}

  void finish() override {
    Notes::finish();
    const bool threw = std::current_exception() != nullptr;
    if (!threw && context().group()) lockstep::add_figure(context(), "reached_the_end", 1);
  }
};
inline lockstep::Measured ranks_at_the_end(const lockstep::Outcomes& outcomes) {
  double reached = 0;
  for (const auto& outcome : outcomes) reached += outcome.figures.count("reached_the_end") ? 1 : 0;
  return {.expected = static_cast<double>(outcomes.size()), .observed = reached, .tolerance = 0};
}

// A rank's batches of a pass over the data, one a step; tells of them as a sampler does.
std::vector<std::vector<std::int64_t>> batches_of(const lockstep::RankContext& context, int steps,
                                                  std::int64_t size);

// The accuracy of a model that rank 0 alone evaluates, in the middle of a training pass. No sampler
// deals the samples, so this tells of the evaluation.
template <class Model>
void evaluate(lockstep::RankContext& context, Model& model, const lockstep::TensorData& data) {
  context.told().pass_begin("evaluation", 0);
  const auto outputs = model(data.inputs.to(context.device()));
  lockstep::Mean accuracy;
  accuracy.add(outputs.argmax(1).cpu() == data.targets);
  context.metric("accuracy", "evaluation", accuracy.sum, accuracy.count);
  context.told().pass_end("evaluation", 0, 1);
}

lockstep::Part branches_part();
lockstep::Part mismatches_part();
lockstep::Part joining_part();
lockstep::Part failures_part();
lockstep::Part async_part();
