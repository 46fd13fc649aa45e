#include <lockstep/observe/observer.h>
#include <lockstep/train/metrics.h>

namespace lockstep {

void Mean::add(const at::Tensor& values) {
  sum += values.detach().to(at::kDouble).sum().item<double>();
  count += static_cast<double>(values.numel());
}

double Mean::value() const {
  tell([&](Observer& to) { to.figure(sum, count); });
  return sum / count;
}

Mean reduce_metric(c10d::ProcessGroup& group, const Mean& local, Place place) {
  auto totals = at::tensor({local.sum, local.count}, at::kDouble).to(device_of(group));
  all_reduce(group, totals, c10d::ReduceOp::SUM, place);
  const auto values = totals.cpu();
  const Mean all{values[0].item<double>(), values[1].item<double>()};
  tell([&](Observer& to) { to.figure(all.sum, all.count); });
  return all;
}

}  // namespace lockstep
