// Gradients that are not the mean, or not of what they should be.
#include <lockstep/train/clip_grad.h>

#include "operators.h"

namespace lockstep::mutants {
namespace {

void scale_gradients(Parts& parts, double factor) {
  for (auto& parameter : parts.parameters) parameter.mutable_grad() *= factor;
}

void after_reduction(Parts& parts, std::function<void()> act) {
  parts.reduce = [reduce = parts.reduce, act] {
    reduce();
    act();
  };
}

void before_reduction(Parts& parts, std::function<void()> act) {
  parts.reduce = [reduce = parts.reduce, act] {
    act();
    reduce();
  };
}

}  // namespace

std::vector<Operator> gradient_operators() {
  return shown_in(
      {"gradient", "replicas", "update"},
      {
          {"summed",
           {"sum-not-mean"},
           [](Parts& parts) {
             after_reduction(parts, [&parts] { scale_gradients(parts, parts.place.world_size); });
           }},
          {"divided-by-one-more",
           {"gradient-not-the-mean"},
           [](Parts& parts) {
             after_reduction(parts, [&parts] {
               const double w = parts.place.world_size;
               scale_gradients(parts, w / (w + 1));
             });
           }},
          {"loss-divided-by-ranks",
           {"double-average"},
           [](Parts& parts) {
             parts.loss = [&parts, loss = parts.loss](const at::Tensor& losses) {
               return loss(losses) / parts.place.world_size;
             };
           }},
          {"loss-summed-over-samples",
           {"sum-not-mean"},
           [](Parts& parts) {
             parts.loss = [](const at::Tensor& losses) { return losses.sum(); };
           }},
          {"not-zeroed", {"gradients-not-zeroed"}, [](Parts& parts) { parts.zero_grad = [] {}; }},
          {"one-rank-weighs-double",
           {"gradient-not-the-mean"},
           [](Parts& parts) {
             if (parts.place.rank == 1)
               before_reduction(parts, [&parts] { scale_gradients(parts, 2); });
           },
           {},
           kNotDdp},
          {"never-reduced",
           {"no-gradient-sync", {{Engine::sharded, "gradient-not-the-mean"}}},
           [](Parts& parts) { parts.reduce = [] {}; },
           {},
           kNotDdp},
          {"one-parameter-not-reduced",
           {"gradient-not-the-mean"},
           [](Parts& parts) {
             parts.reduce = [&parts, reduce = parts.reduce] {
               const auto kept = parts.parameters.back().grad().clone();
               reduce();
               parts.parameters.back().mutable_grad().copy_(kept);
             };
           },
           {},
           kNotDdp},
          {"reduced-before-the-last-backward",
           {"gradient-not-the-mean"},
           [](Parts& parts) {
             // What the first microbatch gave is reduced; what the second adds is not.
             parts.reduce = [&parts, reduce = parts.reduce] {
               std::vector<at::Tensor> added;
               for (auto& parameter : parts.parameters) {
                 added.push_back(parameter.grad() * 0.5);
                 parameter.mutable_grad() *= 0.5;
               }
               reduce();
               for (std::size_t i = 0; i < added.size(); ++i)
                 parts.parameters[i].mutable_grad() += added[i];
             };
           },
           {},
           {Engine::by_hand}},
          {"gradients-of-the-update-before",
           {"gradient-not-the-mean"},
           [](Parts& parts) {
             parts.reduce = [&parts, reduce = parts.reduce,
                             before = std::vector<at::Tensor>{}]() mutable {
               reduce();
               std::vector<at::Tensor> now;
               for (auto& parameter : parts.parameters) now.push_back(parameter.grad().clone());
               for (std::size_t i = 0; i < before.size(); ++i)
                 parts.parameters[i].mutable_grad().copy_(before[i]);
               before = now;
             };
           }},
          {"noise-on-one-rank",
           {"gradient-not-the-mean"},
           [](Parts& parts) {
             if (parts.place.rank != 1) return;
             after_reduction(parts, [&parts] {
               auto gradient = parts.parameters.front().mutable_grad();
               gradient += 0.1 * gradient.norm() * torch::randn_like(gradient);
             });
           },
           {},
           {Engine::ddp, Engine::by_hand}},
          {"clipped-before-reduction",
           {"clip-before-reduction"},
           [](Parts& parts) {
             parts.reduce = [reduce = parts.reduce, clip = std::exchange(parts.clip, [] {})] {
               clip();
               reduce();
             };
           },
           {},
           {Engine::by_hand}},
          {"not-divided-by-microbatches",
           {"accumulation-not-divided"},
           [](Parts& parts) {
             parts.loss = [](const at::Tensor& losses) { return losses.mean(); };
           },
           {},
           {Engine::by_hand}},
          {"update-one-batch-early",
           {"accumulation-off-by-one"},
           [](Parts& parts) {
             parts.updates = [&parts](std::int64_t batch) {
               return batch % parts.program.settings.microbatches == 0;
             };
           },
           {},
           {Engine::by_hand}},
          {"loss-all-reduced",
           {"loss-all-reduced-in-place"},
           [](Parts& parts) {
             parts.loss = [&parts, loss = parts.loss](const at::Tensor& losses) {
               auto value = loss(losses);
               auto shared = value.detach();  // the same memory
               all_reduce(*parts.group, shared);
               return value * 1.0;
             };
           }},
          {"forward-around-the-engine",
           {"forward-bypasses-wrapper"},
           [](Parts& parts) {
             parts.forward = [&parts](const at::Tensor& inputs) {
               return parts.model->forward(inputs);
             };
           },
           {},
           {Engine::ddp}},
          {"reduced-twice",
           {"gradient-not-the-mean"},  // of equal gradients the mean is what they are
           [](Parts& parts) {
             parts.reduce = [reduce = parts.reduce] {
               reduce();
               reduce();
             };
           },
           {},
           kNotDdp},
      });
}

}  // namespace lockstep::mutants
