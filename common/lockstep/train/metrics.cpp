#include <lockstep/train/metrics.h>

namespace lockstep {

void Mean::add(const at::Tensor& values) {
  sum += values.detach().to(at::kDouble).sum().item<double>();
  count += static_cast<double>(values.numel());
}

Mean reduce_metric(c10d::ProcessGroup& group, const Mean& local) {
  auto totals = at::tensor({local.sum, local.count}, at::kDouble).to(device_of(group));
  all_reduce(group, totals);
  const auto values = totals.cpu();
  return {values[0].item<double>(), values[1].item<double>()};
}

}  // namespace lockstep
