// Replicas that begin, or are updated, otherwise than the others.
#include "operators.h"

namespace lockstep::mutants {
namespace {

// On rank 1, around its update.
std::function<void(Parts&)> on_rank_1(
    std::function<void(Parts&, const std::function<void()>&)> act) {
  return [act](Parts& parts) {
    if (parts.place.rank != 1) return;
    parts.update = [&parts, act, update = parts.update] { act(parts, update); };
  };
}

// A sharded optimizer has other groups on each rank, whose options nobody compares.
const Fault kOptimizerDiffers{"optimizer-differs", {{Engine::sharded, "update-differs"}}};

}  // namespace

std::vector<Operator> update_operators() {
  return shown_in({"gradient", "replicas", "update"},
                  {
                      {"learning-rate-of-one-rank",
                       {"update-differs"},
                       [](Parts& parts) {
                         if (parts.place.rank != 1) return;
                         after_start(parts, [&parts] {
                           for (auto& group : parts.optimizer->param_groups())
                             group.options().set_lr(2 * group.options().get_lr());
                         });
                       }},
                      {"decay-of-one-rank", kOptimizerDiffers,
                       [](Parts& parts) {
                         if (parts.place.rank == 1) parts.program.settings.weight_decay += 0.1;
                       }},
                      {"optimizer-of-one-rank", kOptimizerDiffers,
                       [](Parts& parts) {
                         if (parts.place.rank == 1) parts.program.settings.optimizer = "adam";
                       }},
                      {"rate-halved-on-one-rank",
                       {"update-differs"},
                       [](Parts& parts) {
                         if (parts.place.rank == 1) parts.program.settings.halve_lr = true;
                       }},
                      {"update-left-out-on-one-rank",
                       {"update-differs"},
                       on_rank_1([](Parts& parts, const auto& update) {
                         if (parts.step != kChangedStep) update();
                       })},
                      {"update-twice-on-one-rank",
                       {"update-differs"},
                       on_rank_1([](Parts& parts, const auto& update) {
                         update();
                         if (parts.step == kChangedStep) update();
                       })},
                      {"momentum-lost-on-one-rank",
                       {"update-differs"},
                       on_rank_1([](Parts& parts, const auto& update) {
                         if (parts.step == kChangedStep) parts.optimizer->state().clear();
                         update();
                       }),
                       {},
                       kReplicated},
                      {"parameters-of-before-on-one-rank",
                       {"replicas-diverged"},
                       on_rank_1([](Parts& parts, const auto& update) {
                         const auto before = parts.parameters.front().detach().clone();
                         update();
                         torch::NoGradGuard no_grad;
                         if (parts.step == kChangedStep) parts.parameters.front().copy_(before);
                       }),
                       {},
                       kReplicated},
                      {"one-number-changed-on-one-rank",
                       {"replicas-diverged"},
                       [](Parts& parts) {
                         if (parts.place.rank != 1) return;
                         parts.share = [&parts, share = parts.share] {
                           share();
                           torch::NoGradGuard no_grad;
                           if (parts.step == kChangedStep)
                             parts.parameters.back().reshape(-1)[3] += 0.25;
                         };
                       }},
                      {"rounded-on-one-rank",
                       {"replicas-diverged"},
                       [](Parts& parts) {
                         if (parts.place.rank != 1) return;
                         parts.share = [&parts, share = parts.share] {
                           share();
                           torch::NoGradGuard no_grad;
                           for (auto& parameter : parts.parameters)
                             parameter.copy_(parameter.to(torch::kBFloat16).to(torch::kFloat32));
                         };
                       }},
                      {"no-broadcast-at-the-start",
                       {"no-initial-broadcast"},
                       [](Parts& parts) {
                         torch::NoGradGuard no_grad;
                         for (auto& parameter : parts.parameters)
                           parameter += 0.01 * parts.place.rank * torch::ones_like(parameter);
                         parts.tampering->broadcast = [&parts](Tensors& tensors, auto options,
                                                               const auto& inner) {
                           return parts.optimizer ? inner(tensors, options) : done(tensors);
                         };
                       },
                       {},
                       {Engine::by_hand}},
                      {"optimizer-of-copies",
                       {"optimizer-built-on-other-parameters"},
                       [](Parts& parts) { optimizer_of_copies(parts); }},
                      {"share-not-broadcast",
                       {"replicas-diverged"},
                       [](Parts& parts) { parts.share = [] {}; },
                       {},
                       {Engine::sharded}},
                      {"one-share-not-broadcast",
                       {"replicas-diverged"},
                       [](Parts& parts) {
                         parts.tampering->broadcast = [&parts](Tensors& tensors, auto options,
                                                               const auto& inner) {
                           const bool mine =
                               tensors.at(0).data_ptr() == parts.parameters.at(1).data_ptr();
                           return parts.optimizer && mine ? done(tensors) : inner(tensors, options);
                         };
                       },
                       {},
                       {Engine::sharded}},
                  });
}

}  // namespace lockstep::mutants
