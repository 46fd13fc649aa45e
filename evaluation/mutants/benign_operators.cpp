// What a program may do otherwise, and still be right.
#include <lockstep/train/join.h>

#include <algorithm>
#include <iostream>

#include "operators.h"

namespace lockstep::mutants {
namespace {

std::function<void(Program&)> setting(std::function<void(Settings&)> set) {
  return [set](Program& program) { set(program.settings); };
}

void after_share(Parts& parts, std::function<void()> act) {
  parts.share = [share = parts.share, act] {
    share();
    act();
  };
}

// Every gradient, gathered from all ranks and averaged here.
void average_gathered(Parts& parts) {
  for (auto& parameter : parts.parameters)
    parameter.mutable_grad().copy_(
        torch::stack(all_gather(*parts.group, parameter.grad())).mean(0));
}

}  // namespace

std::vector<Operator> benign_operators() {
  const auto nothing = [](Parts&) {};
  return {
      {"as-it-is", {""}, nothing},
      {"renamed-modules", {""}, nothing, setting([](Settings& s) { s.prefix = "student_"; })},
      {"buckets-of-any-size",
       {""},
       nothing,
       setting([](Settings& s) { s.bucket_cap_mb = 25; }),
       {Engine::ddp}},
      {"adam", {""}, nothing, setting([](Settings& s) { s.optimizer = "adam", s.lr = 0.01; })},
      {"plain-sgd", {""}, nothing, setting([](Settings& s) {
         s.optimizer = "sgd", s.weight_decay = 0;
       })},
      {"weight-decay", {""}, nothing, setting([](Settings& s) { s.weight_decay = 0.05; })},
      {"rate-halved", {""}, nothing, setting([](Settings& s) { s.halve_lr = true; })},
      {"dropout",
       {""},
       nothing,
       setting([](Settings& s) { s.dropout = 0.3; }),
       {Engine::ddp, Engine::by_hand, Engine::sharded},
       {.gradients = false}},
      {"low-precision",
       {""},
       nothing,
       setting([](Settings& s) { s.low_precision = true; }),
       {Engine::ddp, Engine::by_hand, Engine::sharded},
       {.relative = 0.1}},
      {"other-batch", {""}, nothing, setting([](Settings& s) { s.batch = 4; })},
      {"one-epoch-more", {""}, nothing, setting([](Settings& s) { s.epochs = 3; })},
      {"more-microbatches",
       {""},
       nothing,
       setting([](Settings& s) { s.microbatches = 4, s.batch = 4; }),
       {Engine::by_hand}},
      {"clipped", {""}, nothing, setting([](Settings& s) { s.max_norm = 0.05; })},
      {"reduced-in-reverse",
       {""},
       [](Parts& parts) {
         parts.reduce = [&parts, reduce = parts.reduce] {
           std::reverse(parts.parameters.begin(), parts.parameters.end());
           reduce();
           std::reverse(parts.parameters.begin(), parts.parameters.end());
         };
       },
       {},
       {Engine::by_hand}},
      {"divided-before-it-is-summed",
       {""},
       [](Parts& parts) {
         parts.reduce = [&parts] {
           for (auto& parameter : parts.parameters) {
             parameter.mutable_grad() /= parts.place.world_size;
             all_reduce(*parts.group, parameter.mutable_grad());
           }
         };
       },
       {},
       kNotDdp},
      {"gathered-and-averaged",
       {""},
       [](Parts& parts) { parts.reduce = [&parts] { average_gathered(parts); }; },
       {},
       kNotDdp},
      {"reduced-later-in-one",
       {""},
       [](Parts& parts) {
         // All under way at once, waited for at the end.
         parts.reduce = [&parts] {
           std::vector<record::WorkPtr> pending;
           std::vector<record::Tensors> tensors;
           for (auto& parameter : parts.parameters) tensors.push_back({parameter.mutable_grad()});
           for (auto& one : tensors) pending.push_back(parts.group->allreduce(one));
           for (auto& work : pending) work->wait();
           for (auto& one : tensors) one.at(0) /= parts.place.world_size;
         };
       },
       {},
       kNotDdp},
      {"barrier-after-every-update",
       {""},
       [](Parts& parts) { after_share(parts, [&parts] { barrier(*parts.group); }); }},
      {"log-by-rank-zero",
       {""},
       [](Parts& parts) {
         if (parts.place.rank == 0)
           after_share(parts, [&parts] {
             std::cout << "step " << parts.step << " loss " << parts.last_loss.item<double>()
                       << "\n";
           });
       }},
      {"mean-loss-for-the-log",
       {""},
       [](Parts& parts) {
         after_share(parts, [&parts] {
           auto loss = parts.last_loss.clone();
           all_reduce(*parts.group, loss);
         });
       }},
      {"smallest-of-the-ranks-losses",
       {""},
       [](Parts& parts) {
         after_share(parts, [&parts] {
           auto loss = parts.last_loss.clone();
           all_reduce(*parts.group, loss, c10d::ReduceOp::MIN);
         });
       }},
      {"average-of-the-parameters-kept",
       {""},
       [](Parts& parts) {
         after_share(parts, [&parts, average = std::make_shared<at::Tensor>()] {
           const auto now = flat(parts.parameters);
           *average = average->defined() ? 0.9 * *average + 0.1 * now : now;
         });
       }},
      {"parameters-broadcast-again",
       {""},
       [](Parts& parts) {
         after_share(parts, [&parts] {
           torch::NoGradGuard no_grad;
           for (auto& parameter : parts.parameters) broadcast(*parts.group, parameter);
         });
       }},
      {"score-gathered",
       {""},
       [](Parts& parts) {
         parts.reduce_score = [&parts](at::Tensor& total) {
           total = torch::stack(all_gather(*parts.group, total)).sum(0);
         };
       }},
      {"uneven-shares-weighted",
       {""},
       [](Parts& parts) {
         // Rank 0 takes three quarters of what it and rank 1 have, and each weighs what it has.
         const auto w = parts.place.world_size, rank = parts.place.rank;
         if (rank < 2)
           parts.batches = [&parts, rank, w](std::int64_t epoch) {
             parts.probes.set_epoch(epoch);
             const auto size = static_cast<std::size_t>(parts.program.settings.batch);
             DistributedSampler both[2] = {DistributedSampler({.dataset_size = parts.train.size(),
                                                               .num_replicas = w,
                                                               .rank = 0,
                                                               .seed = parts.place.seed}),
                                           DistributedSampler({.dataset_size = parts.train.size(),
                                                               .num_replicas = w,
                                                               .rank = 1,
                                                               .seed = parts.place.seed})};
             for (auto& one : both) one.set_epoch(epoch);
             const auto first = both[0].batches(parts.program.settings.batch);
             auto second = both[1].batches(parts.program.settings.batch);
             std::vector<Ids> mine;
             for (std::size_t b = 0; b < first.size(); ++b) {
               Ids ids = first[b];
               ids.insert(ids.end(), second[b].begin(), second[b].end());
               const auto cut = ids.begin() + static_cast<std::ptrdiff_t>(3 * size / 2);
               mine.push_back(rank == 0 ? Ids(ids.begin(), cut) : Ids(cut, ids.end()));
             }
             return mine;
           };
         parts.loss = [&parts](const at::Tensor& losses) {
           return losses.sum() / static_cast<double>(parts.program.settings.batch *
                                                     parts.program.settings.microbatches);
         };
       },
       {},
       {Engine::ddp, Engine::sharded}},
      {"evaluation-by-blocks",
       {""},
       [](Parts& parts) {
         parts.evaluation_ids = [&parts] {
           const auto n = parts.test.size(), w = static_cast<std::int64_t>(parts.place.world_size);
           Ids ids;
           for (auto id = parts.place.rank * n / w; id < (parts.place.rank + 1) * n / w; ++id)
             ids.push_back(id);
           return ids;
         };
       }},
  };
}

}  // namespace lockstep::mutants
