#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace lockstep {
namespace {

std::vector<double> every_value(const Outcomes& outcomes, const std::string& figure) {
  std::vector<double> values;
  for (const auto& outcome : outcomes)
    if (const auto found = outcome.figures.find(figure); found != outcome.figures.end())
      values.insert(values.end(), found->second.begin(), found->second.end());
  const bool unusable =
      values.empty() ||
      std::any_of(values.begin(), values.end(), [](double value) { return std::isnan(value); });
  return unusable ? std::vector<double>{std::numeric_limits<double>::quiet_NaN()} : values;
}

}  // namespace

std::vector<std::int64_t> all_ids(std::int64_t size) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(size));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

void add_figure(RankContext& context, const std::string& name, double value) {
  context.outcome().figures[name].push_back(value);
}

at::Tensor gradient_of_batch(const Mlp& model, const TensorData& batch) {
  Mlp copy(std::dynamic_pointer_cast<MlpImpl>(model->clone()));
  const auto device = copy->parameters().front().device();
  torch::cross_entropy_loss(copy->forward(batch.inputs.to(device)), batch.targets.to(device))
      .backward();
  return flat_gradients(*copy);
}

double largest(const Outcomes& outcomes, const std::string& figure) {
  const auto values = every_value(outcomes, figure);
  return *std::max_element(values.begin(), values.end());
}

double smallest(const Outcomes& outcomes, const std::string& figure) {
  const auto values = every_value(outcomes, figure);
  return *std::min_element(values.begin(), values.end());
}

double spread(const Outcomes& outcomes, const std::string& figure) {
  return largest(outcomes, figure) - smallest(outcomes, figure);
}

std::vector<std::int64_t> times_drawn(const Outcomes& outcomes, const std::string& phase,
                                      std::size_t pass, std::int64_t dataset_size) {
  std::vector<std::int64_t> times(static_cast<std::size_t>(dataset_size), 0);
  for (const auto& outcome : outcomes) {
    const auto found = outcome.ids.find(phase);
    if (found == outcome.ids.end() || found->second.size() <= pass) continue;
    for (const auto id : found->second[pass])
      if (id >= 0 && id < dataset_size) ++times[static_cast<std::size_t>(id)];
  }
  return times;
}

}  // namespace lockstep
