// What is done to a gradient between backward and the update: clipped, scaled, left out, sent in 16 bits. The
// reduction is by hand.
#include <lockstep/record/recorder.h>
#include <lockstep/train/grad_scaler.h>

#include <algorithm>
#include <limits>

#include "silence.h"

namespace lockstep::silence {
namespace {

constexpr double kMaxNorm = 0.5;

double norm_of(const at::Tensor& gradient) {
  return gradient.norm().item<double>();
}

void clip(Mlp& net, double norm) {
  const auto told = torch::tensor(norm, at::kDouble);
  tell([&](Observer& to) { to.clip(kMaxNorm, told); });
  set_gradients(*net, flat_gradients(*net) * std::min(1.0, kMaxNorm / (norm + 1e-6)));
}

at::Tensor average(const Job& job, const at::Tensor& own) {
  auto sum = own.clone();
  all_reduce(*job.group, sum);
  return sum / job.world_size();
}

// Trains; after each backward `update(net, optimizer, loss)` has the rest to do.
template <class Update>
double train_with(const Job& job, const Update& update) {
  record::intent({.global_batch = job.batch * job.world_size(), .loss_reduction = "mean"});
  auto net = make_model();
  DecayingSgd sgd(net->parameters(), job.rate, job.updates());
  for_updates(job.updates(), shuffled(job), [&](const Ids& ids) {
    const auto batch = take(job.train, ids);
    net->zero_grad();
    update(net, sgd.optimizer, mean_loss(net->forward(batch.inputs), batch.targets));
    sgd.schedule.step();
  });
  return accuracy(net, job.test);
}

double clipping(const Job& job, const Fault& fault) {
  return train_with(job, [&](Mlp& net, torch::optim::SGD& optimizer, const at::Tensor& loss) {
    loss.backward();
    if (fault("clip-before-reduction")) clip(net, norm_of(flat_gradients(*net)));
    set_gradients(*net, average(job, flat_gradients(*net)));
    double norm = norm_of(flat_gradients(*net));
    if (fault("norm-reduced-twice")) {
      auto squares = at::full({1}, norm * norm);
      all_reduce(*job.group, squares);
      norm = squares.sqrt().item<double>();
    }
    if (!fault("clip-before-reduction")) clip(net, norm);
    optimizer.step();
  });
}

double scaling(const Job& job, const Fault& fault) {
  GradScaler scaler({.init_scale = 1024});
  return train_with(job, [&](Mlp& net, torch::optim::SGD& optimizer, const at::Tensor& loss) {
    scaler.scale(loss).backward();
    set_gradients(*net, average(job, flat_gradients(*net)));
    if (fault("clip-before-unscale")) clip(net, norm_of(flat_gradients(*net)));
    scaler.unscale_(optimizer);
    if (!fault("clip-before-unscale")) clip(net, norm_of(flat_gradients(*net)));
    scaler.step(optimizer);
    scaler.update();
  });
}

// Every eighth update one rank's gradient overflows, the ranks in turn.
double overflow(const Job& job, const Fault& fault) {
  std::int64_t step = 0;
  return train_with(job, [&](Mlp& net, torch::optim::SGD& optimizer, const at::Tensor& loss) {
    loss.backward();
    auto gradient = flat_gradients(*net);
    if (step % 8 == 7 && step / 8 % job.world_size() == job.rank())
      gradient.fill_(std::numeric_limits<float>::infinity());
    ++step;
    const bool found = !at::isfinite(gradient).all().item<bool>();
    auto skip = at::full({1}, found ? 1 : 0);
    if (!fault("local-overflow-skip")) all_reduce(*job.group, skip, c10d::ReduceOp::MAX);
    if (found) gradient.zero_();
    set_gradients(*net, average(job, gradient));  // everyone takes part, whatever it has found
    const bool updates = skip.item<float>() == 0;
    tell([&](Observer& to) { to.scaled_step(1, found, updates); });
    if (updates) optimizer.step();
  });
}

double precision(const Job& job, const Fault& fault) {
  GradScaler
      scaler;  // 65536: the sum of the ranks' gradients may leave float16 where their mean does not
  return train_with(job, [&](Mlp& net, torch::optim::SGD& optimizer, const at::Tensor& loss) {
    scaler.scale(loss).backward();
    const auto own = flat_gradients(*net);
    if (fault("low-precision-reduction")) {
      auto sum = own.to(at::kHalf);
      all_reduce(*job.group, sum);
      set_gradients(*net, sum.to(at::kFloat) / job.world_size());
    } else {
      set_gradients(*net, average(job, own));
    }
    scaler.step(optimizer);
    scaler.update();
  });
}

}  // namespace

std::vector<Setting> clipping_settings() {
  return {{"clipping", {"norm-reduced-twice", "clip-before-reduction"}, clipping},
          {"scaling", {"clip-before-unscale"}, scaling},
          {"overflow", {"local-overflow-skip"}, overflow},
          {"precision", {"low-precision-reduction"}, precision}};
}

}  // namespace lockstep::silence
