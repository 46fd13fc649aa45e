// A third set: written once the detectors had been mended after looking at both halves, and committed before it ran.
#include <lockstep/base/error.h>
#include <sys/resource.h>

#include <csignal>
#include <thread>

#include "operators.h"

namespace lockstep::mutants {
namespace {

// What rank 1 does to its gradients before they are reduced.
std::function<void(Parts&)> before_reduction_on_rank_1(std::function<void(at::Tensor&)> change) {
  return [change](Parts& parts) {
    if (parts.place.rank != 1) return;
    parts.reduce = [&parts, change, reduce = parts.reduce] {
      for (auto& parameter : parts.parameters) change(parameter.mutable_grad());
      reduce();
    };
  };
}

void before_each_pass(Parts& parts, std::function<void(std::int64_t)> act) {
  parts.batches = [act, batches = parts.batches](std::int64_t epoch) {
    act(epoch);
    return batches(epoch);
  };
}

std::vector<Operator> faults() {
  auto all = shown_in({"gradient", "replicas", "update"},
                      {{"gradient-of-one-rank-lost",
                        {"gradient-not-the-mean"},
                        before_reduction_on_rank_1([](at::Tensor& gradient) { gradient.zero_(); }),
                        {},
                        kNotDdp},
                       {"sign-flipped-on-one-rank",
                        {"gradient-not-the-mean"},
                        before_reduction_on_rank_1([](at::Tensor& gradient) { gradient.neg_(); }),
                        {},
                        kNotDdp},
                       {"a-copy-is-reduced-on-one-rank",
                        {"gradient-not-the-mean"},
                        [](Parts& parts) {
                          if (parts.place.rank != 1) return;
                          parts.reduce = [&parts] {
                            for (auto& parameter : parts.parameters) {
                              auto copy = parameter.grad().clone();
                              all_reduce(*parts.group, copy);
                            }
                          };
                        },
                        {},
                        {Engine::by_hand}},
                       {"not-zeroed-on-one-rank",
                        {"gradient-not-the-mean"},
                        [](Parts& parts) {
                          if (parts.place.rank == 1) parts.zero_grad = [] {};
                        }},
                       {"updated-before-it-is-reduced",
                        {"no-gradient-sync", {{Engine::sharded, "gradient-not-the-mean"}}},
                        [](Parts& parts) {
                          parts.update = [reduce = std::exchange(parts.reduce, [] {}),
                                          update = parts.update] {
                            update();
                            reduce();
                          };
                        },
                        {},
                        kNotDdp},
                       {"rate-raised-on-one-rank-in-the-run", {"update-differs"}, [](Parts& parts) {
                          if (parts.place.rank != 1) return;
                          parts.update = [&parts, update = parts.update] {
                            if (parts.step == 3)
                              for (auto& group : parts.optimizer->param_groups())
                                group.options().set_lr(3 * group.options().get_lr());
                            update();
                          };
                        }}});
  const auto of_samples =
      shown_in({"samples"}, {{"epoch-told-twice", {"missing-set-epoch"}, [](Parts& parts) {
                                parts.batches = [batches = parts.batches](std::int64_t epoch) {
                                  return batches(epoch / 2);
                                };
                              }}});
  const auto of_ends = shown_in(
      {"ended"}, {{"one-rank-is-killed-in-its-second-pass",
                   {"peer-dies"},
                   [](Parts& parts) {
                     if (parts.place.rank == 1)
                       before_each_pass(parts, [](std::int64_t epoch) {
                         if (epoch == 0) return;
                         const rlimit none{0, 0};
                         setrlimit(RLIMIT_CORE, &none);
                         std::raise(SIGKILL);
                       });
                   }},
                  {"one-rank-throws-in-its-second-pass", {"one-rank-raises"}, [](Parts& parts) {
                     if (parts.place.rank == 1)
                       before_each_pass(parts, [](std::int64_t epoch) {
                         if (epoch > 0) throw Error("the second epoch's file is damaged");
                       });
                   }}});
  all.insert(all.end(), of_samples.begin(), of_samples.end());
  all.insert(all.end(), of_ends.begin(), of_ends.end());
  return all;
}

std::vector<Operator> choices() {
  return {
      {"shares-change-hands-each-epoch",
       {""},
       [](Parts& parts) {
         parts.batches = [&parts](std::int64_t epoch) {
           const int w = parts.place.world_size;
           DistributedSampler sampler({.dataset_size = parts.train.size(),
                                       .num_replicas = w,
                                       .rank = (parts.place.rank + static_cast<int>(epoch)) % w,
                                       .seed = parts.place.seed});
           parts.probes.set_epoch(epoch);
           sampler.set_epoch(epoch);
           return sampler.batches(parts.program.settings.batch);
         };
       }},
      {"barrier-before-each-epoch",
       {""},
       [](Parts& parts) {
         before_each_pass(parts, [&parts](std::int64_t) { barrier(*parts.group); });
       }},
      {"one-rank-pauses-a-little",
       {""},
       [](Parts& parts) {
         if (parts.place.rank == 1)
           before_each_pass(parts, [](std::int64_t) {
             std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the pause itself
           });
       }},
      {"reduced-in-16-bits",
       {""},
       [](Parts& parts) {
         parts.reduce = [&parts] {
           for (auto& parameter : parts.parameters) {
             auto half = (parameter.grad() / parts.place.world_size).to(torch::kHalf);
             all_reduce(*parts.group, half);
             parameter.mutable_grad().copy_(half);
           }
         };
       },
       {},
       kNotDdp,
       {.relative = 0.01}},
      {"test-set-on-rank-zero-alone",
       {""},
       [](Parts& parts) {
         const bool evaluates = parts.place.rank == 0;
         parts.evaluation_ids = [&parts, evaluates] {
           Ids ids;
           for (std::int64_t id = 0; evaluates && id < parts.test.size(); ++id) ids.push_back(id);
           return ids;
         };
       }},
  };
}

}  // namespace

std::vector<Operator> later_operators() {
  auto all = faults();
  for (auto& one : choices()) all.push_back(std::move(one));
  return one_set("later", std::move(all));
}

}  // namespace lockstep::mutants
