// The fourth set's faults of gradients, updates and schedules.
#include <cmath>

#include "operators.h"

namespace lockstep::mutants {
namespace {

const std::vector<Engine> kUnclipped{Engine::ddp, Engine::sharded};  // a clip may hide a scale

void average(Parts& parts, at::Tensor& gradient) {
  all_reduce(*parts.group, gradient);
  gradient /= parts.place.world_size;
}

// DDP with two microbatches, or one: which of them it reduces.
void reduce_where(Parts& parts, std::function<bool(std::int64_t microbatch)> wanted) {
  parts.forward = [&parts, wanted, forward = parts.forward,
                   count = std::int64_t{0}](const at::Tensor& inputs) mutable {
    const bool sync = wanted(count++ % parts.program.settings.microbatches);
    parts.probes.sync_gradients(sync);
    parts.ddp->engine().set_require_sync(sync);
    return forward(inputs);
  };
}

// A schedule that halves the rate, moved by one step.
void halve(Parts& parts, std::int64_t position, std::int64_t length) {
  for (auto& group : parts.optimizer->param_groups())
    group.options().set_lr(group.options().get_lr() / 2);
  parts.probes.schedule(position, length);
}

void tell_of_schedule(Parts& parts, std::int64_t length) {
  parts.start = [&parts, length, start = parts.start] {
    start();
    parts.probes.schedule(0, length);
  };
}

// When the update has been told, so before the next one's gradients.
void after_each_update(Parts& parts, std::function<void(std::int64_t)> act) {
  parts.zero_grad = [&parts, act, zero_grad = parts.zero_grad] {
    if (parts.step > 0) act(parts.step);
    zero_grad();
  };
}

void halves_lr(Program& program) {
  program.settings.halve_lr = true;
}

std::vector<Operator> of_gradients() {
  return shown_in(
      {"gradient", "replicas", "update", "ended"},
      {
          {"averaged-without-the-last-rank",
           {"gradient-not-the-mean"},
           reduced_by([](Parts& parts, at::Tensor& gradient) {
             auto all = all_gather(*parts.group, gradient);
             all.pop_back();
             gradient.copy_(torch::stack(all).mean(0));
           }),
           {},
           kNotDdp},
          {"divided-by-the-batch",
           {"gradient-not-the-mean"},
           reduced_by([](Parts& parts, at::Tensor& gradient) {
             all_reduce(*parts.group, gradient);
             gradient /= static_cast<double>(parts.program.settings.batch);
           }),
           {},
           {Engine::sharded}},
          {"reduced-to-rank-zero",
           {"gradient-not-the-mean"},
           reduced_by([](Parts& parts, at::Tensor& gradient) {
             Tensors one{gradient};
             parts.group->reduce(one, c10d::ReduceOptions{})->wait();
             gradient /= parts.place.world_size;
           }),
           {},
           kNotDdp},
          {"large-numbers-alone-are-sent",
           {"gradient-not-the-mean"},
           reduced_by([](Parts& parts, at::Tensor& gradient) {
             const auto size = gradient.abs();
             gradient *= size >= 0.25 * size.max();
             average(parts, gradient);
           }),
           {},
           kNotDdp},
          {"flat-buffer-read-one-off",
           {"gradient-not-the-mean"},
           [](Parts& parts) {
             parts.reduce = [&parts] {
               auto gradients = flat_gradients(parts.parameters);
               average(parts, gradients);
               gradients = gradients.roll(1);
               std::int64_t at = 0;
               for (auto& parameter : parts.parameters) {
                 parameter.mutable_grad().copy_(
                     gradients.narrow(0, at, parameter.numel()).view(parameter.sizes()));
                 at += parameter.numel();
               }
             };
           },
           {},
           kNotDdp},
          {"reduced-in-bfloat16",
           {"low-precision-reduction"},
           reduced_by([](Parts& parts, at::Tensor& gradient) {
             auto coarse = gradient.to(torch::kBFloat16);
             average(parts, coarse);
             gradient.copy_(coarse);
           }),
           {},
           kNotDdp},
          {"gathered-and-summed",
           {"sum-not-mean"},
           reduced_by([](Parts& parts, at::Tensor& gradient) {
             gradient.copy_(torch::stack(all_gather(*parts.group, gradient)).sum(0));
           }),
           {},
           {Engine::sharded}},
          {"average-divided-again",
           {"double-average"},
           [](Parts& parts) {
             parts.reduce = [&parts, reduce = parts.reduce] {
               reduce();
               for (auto& parameter : parts.parameters)
                 parameter.mutable_grad() /= parts.place.world_size;
             };
           },
           {},
           kUnclipped},
          {"losses-gathered-without-their-graph",
           {"gather-loses-graph"},
           [](Parts& parts) {
             parts.loss = [&parts](const at::Tensor& losses) {
               auto all = all_gather(*parts.group, losses.detach());
               all.at(static_cast<std::size_t>(parts.place.rank)) = losses;
               return torch::cat(all).mean() /
                      static_cast<double>(parts.program.settings.microbatches);
             };
           },
           {},
           kUnclipped},
          {"used-while-on-its-way",
           {"async-work-not-waited"},
           [](Parts& parts) {
             parts.reduce = [&parts] {
               for (auto& parameter : parts.parameters) {
                 auto& gradient = parameter.mutable_grad();
                 Tensors arrives_later{gradient.clone()};
                 auto work = parts.group->allreduce(arrives_later);
                 parts.probes.async_result("gradient", "used", gradient);
                 gradient /= parts.place.world_size;
                 work->wait();
                 parts.probes.async_result("gradient", "waited", arrives_later.at(0));
               }
             };
           },
           {},
           kNotDdp},
          {"norm-added-up-over-the-ranks",
           {"norm-reduced-twice"},
           [](Parts& parts) {
             parts.clip = [&parts] {
               const double most = parts.program.settings.max_norm;
               auto squared = flat_gradients(parts.parameters).pow(2).sum();
               all_reduce(*parts.group, squared);
               const double norm = std::sqrt(squared.item<double>());
               parts.probes.clip(most, norm);
               for (auto& parameter : parts.parameters)
                 parameter.mutable_grad() *= std::min(1.0, most / norm);
             };
           },
           {},
           {Engine::by_hand}},
          {"lower-clip-limit-on-one-rank",
           {"gradient-not-the-mean"},
           [](Parts& parts) {
             if (parts.place.rank == 1) parts.program.settings.max_norm = 0.02;
           }},
          {"told-never-to-reduce",
           {"no-gradient-sync"},
           [](Parts& parts) { reduce_where(parts, [](std::int64_t) { return false; }); },
           {},
           {Engine::ddp}},
          {"first-microbatch-reduced-for-the-last",
           {"gradient-not-the-mean"},
           [](Parts& parts) {
             reduce_where(parts, [](std::int64_t microbatch) { return microbatch == 0; });
           },
           [](Program& program) { program.settings.microbatches = 2; },
           {Engine::ddp}},
          {"microbatches-left-at-the-end",
           {"last-accumulation-window-lost"},
           [](Parts&) {},
           [](Program& program) { program.settings.microbatches = 5; },
           {Engine::by_hand}},
          {"frozen-once-it-was-wrapped",
           {"frozen-after-wrapping"},
           [](Parts& parts) {
             after_start(parts, [&parts] {
               parts.parameters.front().set_requires_grad(false);
               parts.probes.attach(*parts.model);
             });
           },
           {},
           {Engine::ddp}},
          {"way-out-after-one-layer-on-one-rank",
           {"unused-parameter"},
           [](Parts& parts) {
             if (parts.place.rank != 1) return;
             parts.forward = [&parts, forward = parts.forward](const at::Tensor& inputs) {
               const auto outputs = forward(inputs);
               if (parts.step != 2) return outputs;
               return torch::tanh(torch::linear(inputs, parts.parameters[0], parts.parameters[1]))
                   .narrow(1, 0, outputs.size(1));
             };
           },
           {},
           {Engine::ddp}},
      });
}

std::vector<Operator> of_updates() {
  return shown_in(
      {"gradient", "replicas", "update"},
      {
          {"decay-added-to-the-gradient-on-one-rank",
           {"update-differs"},
           [](Parts& parts) {
             if (parts.place.rank != 1) return;
             parts.update = [&parts, update = parts.update] {
               torch::NoGradGuard no_grad;
               for (auto& parameter : parts.parameters) parameter.mutable_grad() += 0.1 * parameter;
               update();
             };
           }},
          {"one-rank-updates-half-as-often",
           {"update-differs"},
           [](Parts& parts) {
             if (parts.place.rank == 1)
               parts.updates = [](std::int64_t batch) { return batch % 2 == 1; };
           },
           {},
           {Engine::ddp}},
          {"copies-in-one-ranks-optimizer",
           {"optimizer-built-on-other-parameters"},
           [](Parts& parts) {
             if (parts.place.rank == 1) optimizer_of_copies(parts);
           },
           {},
           kReplicated},
          {"goes-on-from-the-average-on-one-rank",
           {"replicas-diverged"},
           [](Parts& parts) {
             if (parts.place.rank != 1) return;
             auto average = std::make_shared<std::vector<at::Tensor>>();
             for (const auto& parameter : parts.parameters)
               average->push_back(parameter.detach().clone());
             parts.share = [&parts, average, share = parts.share] {
               share();
               torch::NoGradGuard no_grad;
               for (std::size_t i = 0; i < average->size(); ++i) {
                 average->at(i).lerp_(parts.parameters[i], 0.5);
                 if (parts.step == 2) parts.parameters[i].copy_(average->at(i));
               }
             };
           },
           {},
           kReplicated},
          {"shared-before-the-update",
           {"replicas-diverged"},
           [](Parts& parts) {
             parts.update = [update = parts.update, share = std::exchange(parts.share, [] {})] {
               share();
               update();
             };
           },
           {},
           {Engine::sharded}},
          {"last-layer-made-anew-by-each-rank",
           {"no-initial-broadcast"},
           [](Parts& parts) {
             after_start(parts, [&parts] {
               torch::NoGradGuard no_grad;
               parts.parameters.at(2).normal_(0, 0.1);  // by the rank's own random numbers
             });
           }},
          {"rate-halved-once-for-each-rank",
           {"scheduler-stepped-per-rank"},
           [](Parts& parts) {
             const auto epochs = parts.program.settings.epochs;
             tell_of_schedule(parts, epochs);
             parts.end_epoch = [&parts, epochs, taken = std::int64_t{0}]() mutable {
               for (int rank = 0; rank < parts.place.world_size; ++rank)
                 halve(parts, ++taken, epochs);
             };
           },
           halves_lr},
          {"rate-halved-after-every-update",
           {"schedule-unit-mismatch"},
           [](Parts& parts) {
             const auto epochs = parts.program.settings.epochs;
             tell_of_schedule(parts, epochs);
             parts.end_epoch = [] {};
             after_each_update(
                 parts, [&parts, epochs](std::int64_t taken) { halve(parts, taken, epochs); });
           },
           halves_lr},
          {"schedule-made-for-the-whole-data-set",
           {"schedule-length-ignores-world-size"},
           [](Parts& parts) {
             const auto& settings = parts.program.settings;
             const auto epoch = parts.train.size() / (settings.batch * settings.microbatches);
             const auto length = epoch * settings.epochs;
             tell_of_schedule(parts, length);
             parts.end_epoch = [] {};
             after_each_update(parts, [&parts, epoch, length](std::int64_t taken) {
               if (taken % epoch == 0)
                 halve(parts, taken, length);
               else
                 parts.probes.schedule(taken, length);
             });
           },
           halves_lr},
      });
}

}  // namespace

std::vector<Operator> unseen_gradient_operators() {
  auto all = of_gradients();
  for (auto& one : of_updates()) all.push_back(std::move(one));
  return all;
}

}  // namespace lockstep::mutants
