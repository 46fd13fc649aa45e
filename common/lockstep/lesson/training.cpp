#include <lockstep/lesson/training.h>

namespace lockstep {
namespace {

Mlp observed(RankContext& context, std::int64_t hidden) {
  Mlp module(784, hidden, 10);
  module->to(context.device());
  context.probes().attach(*module);
  return module;
}

}  // namespace

Trainer::Trainer(RankContext& context, TensorData data, std::int64_t hidden)
    : context_(context),
      data_(std::move(data)),
      module_(observed(context, hidden)),
      ddp_(module_, context.group()),
      optimizer_(module_->parameters(), 0.01) {
  context_.probes().engine("distributed_data_parallel");
  context_.probes().start();
}

void Trainer::begin_epoch(std::int64_t epoch) {
  epoch_ = epoch;
  batches_ = 0;
  loss_ = {};
  accuracy_ = {};
  drawn_.clear();
  context_.probes().pass_begin("train", epoch);
}

void Trainer::step(const std::vector<std::int64_t>& positions) {
  step(positions, positions);
}

void Trainer::step(const std::vector<std::int64_t>& positions,
                   const std::vector<std::int64_t>& ids) {
  draw(ids);
  update(take(data_, positions));
}

void Trainer::step(const TensorData& batch, const std::vector<std::int64_t>& ids) {
  draw(ids);
  update(batch);
}

void Trainer::draw(const std::vector<std::int64_t>& ids) {
  context_.probes().samples("train", ids);
  drawn_.insert(drawn_.end(), ids.begin(), ids.end());
  context_.outcome().ids["drawn"] = {ids};  // for an oracle of a run that dies on its first batch
}

void Trainer::update(const TensorData& batch) {
  auto& probes = context_.probes();
  optimizer_.zero_grad();
  const auto targets = batch.targets.to(context_.device());
  const auto outputs = ddp_(batch.inputs.to(context_.device()));
  const auto each = torch::cross_entropy_loss(outputs, targets, {}, at::Reduction::None);
  const auto loss = each.mean();
  probes.loss(loss, each);
  loss.backward();
  probes.gradients_ready();
  optimizer_.step();
  probes.updated(optimizer_);
  loss_.add(each);
  accuracy_.add(outputs.argmax(1) == targets);
  ++batches_;
}

void Trainer::end_epoch() {
  context_.probes().pass_end("train", epoch_, batches_);
  context_.outcome().losses.push_back(loss_.value());
  context_.outcome().accuracy.push_back(accuracy_.value());
  context_.outcome().ids["train"].push_back(drawn_);
  add_figure(context_, "batches", static_cast<double>(batches_));
}

}  // namespace lockstep
