// The loop that all programs share, with the probes beside its steps as trace.md asks for.
#include "parts.h"

namespace lockstep::mutants {
namespace {

constexpr std::int64_t kEvaluationBatch = 32;

Ids all_ids(const TensorData& data) {
  Ids ids(static_cast<std::size_t>(data.size()));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i);
  return ids;
}

void tell_of_data(Parts& parts) {
  const auto& settings = parts.program.settings;
  parts.probes.intent(
      {.global_batch = settings.batch * settings.microbatches * parts.place.world_size,
       .loss_reduction = "mean"});
  parts.probes.dataset("train", parts.train.inputs, parts.train.targets, all_ids(parts.train),
                       parts.train.size());
  parts.probes.dataset("evaluation", parts.test.inputs, parts.test.targets, all_ids(parts.test),
                       parts.test.size());
}

void note(Seen& seen, const Parts& parts, const TensorData& batch, const Ids& ids,
          std::int64_t epoch) {
  seen.inputs.push_back(batch.inputs);
  seen.targets.push_back(batch.targets);
  seen.ids.push_back(torch::tensor(ids));
  seen.steps.push_back(torch::tensor(parts.step));
  seen.epochs.push_back(torch::tensor(epoch));
}

void backward(Parts& parts, const TensorData& batch) {
  const auto losses = parts.program.losses(parts.forward(batch.inputs), batch);
  parts.probes.forward(true);
  const auto loss = parts.loss(losses);
  parts.probes.loss(loss, losses);
  loss.backward();
  parts.last_loss = loss.detach();
}

void update(Parts& parts, Seen& seen) {
  parts.reduce();
  parts.clip();
  parts.probes.gradients_ready();
  seen.parameters.push_back(flat(parts.parameters));
  seen.gradients.push_back(flat_gradients(parts.parameters));
  parts.update();
  parts.share();
  parts.probes.updated(*parts.optimizer);
  ++parts.step;
}

void evaluate(Parts& parts, Seen& seen, std::int64_t epoch) {
  parts.probes.pass_begin("evaluation", epoch);
  const auto ids = parts.evaluation_ids();
  auto total = torch::zeros({2}, torch::kFloat64);
  std::int64_t batches = 0;
  parts.model->eval();
  torch::NoGradGuard no_grad;
  for (std::size_t at = 0; at < ids.size(); at += kEvaluationBatch, ++batches) {
    const auto end = std::min(ids.size(), at + static_cast<std::size_t>(kEvaluationBatch));
    const Ids some(ids.begin() + static_cast<std::ptrdiff_t>(at),
                   ids.begin() + static_cast<std::ptrdiff_t>(end));
    parts.probes.samples("evaluation", some);
    const auto batch = take(parts.test, some);
    const auto outputs = parts.model->forward(batch.inputs);
    parts.probes.forward(false);
    total += torch::tensor({parts.program.score(outputs, batch), static_cast<double>(some.size())},
                           torch::kFloat64);
  }
  parts.model->train();
  parts.reduce_score(total);
  if (parts.reports)
    parts.probes.metric("score", "evaluation", total[0].item<double>(), total[1].item<double>());
  parts.probes.pass_end("evaluation", epoch, batches);
  seen.reported = total;
}

}  // namespace

Seen train(Parts& parts) {
  Seen seen;
  tell_of_data(parts);
  parts.start();
  parts.probes.start();
  for (std::int64_t epoch = 0; epoch < parts.program.settings.epochs; ++epoch) {
    const auto batches = parts.batches(epoch);
    parts.probes.pass_begin("train", epoch);
    bool first = true;  // of an update
    for (std::size_t b = 0; b < batches.size(); ++b) {
      parts.probes.samples("train", batches[b]);
      const auto batch = parts.fetch(batches[b], epoch);
      note(seen, parts, batch, batches[b], epoch);
      if (std::exchange(first, false)) parts.zero_grad();
      backward(parts, batch);
      if (!parts.updates(static_cast<std::int64_t>(b))) continue;
      update(parts, seen);
      first = true;
    }
    parts.probes.pass_end("train", epoch, static_cast<std::int64_t>(batches.size()));
    parts.end_epoch();
    evaluate(parts, seen, epoch);
  }
  seen.parameters.push_back(flat(parts.parameters));
  return seen;
}

}  // namespace lockstep::mutants
