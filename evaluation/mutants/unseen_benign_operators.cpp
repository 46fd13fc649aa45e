// The fourth set's choices that are right.
#include <lockstep/base/error.h>
#include <lockstep/train/seeding.h>

#include "operators.h"

namespace lockstep::mutants {
namespace {

// From hand to hand: rank 0 adds up what the others send, and sends them the mean.
void average_by_messages(Parts& parts, at::Tensor& gradient) {
  Tensors mine{gradient};
  if (parts.place.rank > 0) {
    parts.group->send(mine, 0, 0)->wait();
    parts.group->recv(mine, 0, 1)->wait();
    return;
  }
  for (int rank = 1; rank < parts.place.world_size; ++rank) {
    Tensors theirs{torch::empty_like(gradient)};
    parts.group->recv(theirs, rank, 0)->wait();
    gradient += theirs.at(0);
  }
  gradient /= parts.place.world_size;
  for (int rank = 1; rank < parts.place.world_size; ++rank)
    parts.group->send(mine, rank, 1)->wait();
}

std::vector<Ids> cut(const Ids& ids, std::int64_t size) {
  std::vector<Ids> batches;
  const auto n = static_cast<std::int64_t>(ids.size());
  for (std::int64_t at = 0; at < n; at += size)
    batches.emplace_back(ids.begin() + at, ids.begin() + std::min(n, at + size));
  return batches;
}

// Always the same samples, each rank in an order of its own.
std::vector<Ids> own_share_shuffled(const Parts& parts, std::int64_t epoch) {
  Ids ids;
  const auto w = static_cast<std::int64_t>(parts.place.world_size);
  for (std::int64_t id = parts.place.rank; id < parts.train.size(); id += w) ids.push_back(id);
  auto dice = torch::make_generator<at::CPUGeneratorImpl>(
      sample_seed(parts.place.seed, epoch, parts.place.rank));
  const auto order = torch::randperm(static_cast<std::int64_t>(ids.size()), dice);
  Ids shuffled;
  for (std::int64_t i = 0; i < order.numel(); ++i)
    shuffled.push_back(ids[static_cast<std::size_t>(order[i].item<std::int64_t>())]);
  return cut(shuffled, parts.program.settings.batch);
}

// A seed for each epoch that rank 0 thinks of, in place of an epoch told.
std::vector<Ids> by_rank_zeros_seed(Parts& parts, std::int64_t epoch) {
  auto seed = torch::tensor({parts.place.rank == 0 ? 1'000 * epoch + 17 : 0});
  broadcast(*parts.group, seed);
  return DistributedSampler({.dataset_size = parts.train.size(),
                             .num_replicas = parts.place.world_size,
                             .rank = parts.place.rank,
                             .seed = static_cast<std::uint64_t>(seed.item<std::int64_t>())})
      .batches(parts.program.settings.batch);
}

// One order for all, of which each rank takes a block.
std::vector<Ids> block_of_the_order(Parts& parts, std::int64_t epoch) {
  DistributedSampler all({.dataset_size = parts.train.size(), .seed = parts.place.seed});
  parts.probes.set_epoch(epoch);
  all.set_epoch(epoch);
  const auto ids = all.indices();
  const auto n = static_cast<std::int64_t>(ids.size()) / parts.place.world_size;
  const auto first = ids.begin() + parts.place.rank * n;
  return cut(Ids(first, first + n), parts.program.settings.batch);
}

std::vector<Operator> of_steps() {
  return {
      {"reduced-to-rank-zero-and-broadcast",
       {""},
       reduced_by([](Parts& parts, at::Tensor& gradient) {
         Tensors one{gradient};
         parts.group->reduce(one, c10d::ReduceOptions{})->wait();
         gradient /= parts.place.world_size;
         broadcast(*parts.group, gradient);
       }),
       {},
       kNotDdp},
      {"averaged-by-messages", {""}, reduced_by(average_by_messages), {}, kNotDdp},
      {"reduced-in-double-precision",
       {""},
       reduced_by([](Parts& parts, at::Tensor& gradient) {
         auto fine = gradient.to(torch::kFloat64);
         all_reduce(*parts.group, fine);
         gradient.copy_(fine / parts.place.world_size);
       }),
       {},
       kNotDdp},
      {"updated-by-rank-zero-and-broadcast",
       {""},
       [](Parts& parts) {
         if (parts.place.rank != 0) parts.update = [] {};
         parts.share = [&parts, share = parts.share] {
           torch::NoGradGuard no_grad;
           for (auto& parameter : parts.parameters) broadcast(*parts.group, parameter);
           share();
         };
       },
       {},
       kReplicated},
      {"loss-scaled-up-gradients-down",
       {""},
       [](Parts& parts) {
         constexpr double kScale = 128;
         parts.loss = [loss = parts.loss](const at::Tensor& losses) {
           return kScale * loss(losses);
         };
         parts.reduce = [&parts, reduce = parts.reduce] {
           reduce();
           for (auto& parameter : parts.parameters) parameter.mutable_grad() /= kScale;
         };
         parts.share = [&parts, share = parts.share] {
           share();
           parts.probes.scaled_step(kScale, false, true);
         };
       }},
      {"first-microbatch-not-reduced",
       {""},
       [](Parts& parts) {
         parts.forward = [&parts, forward = parts.forward,
                          last = true](const at::Tensor& inputs) mutable {
           last = !last;
           parts.probes.sync_gradients(last);
           parts.ddp->engine().set_require_sync(last);
           return forward(inputs);
         };
       },
       [](Program& program) { program.settings.microbatches = 2; },
       {Engine::ddp}},
      {"norms-compared-after-every-reduction",
       {""},
       [](Parts& parts) {
         parts.reduce = [&parts, reduce = parts.reduce] {
           reduce();
           const auto norms =
               all_gather(*parts.group, flat_gradients(parts.parameters).norm().reshape({1}));
           for (const auto& norm : norms)
             if (!torch::equal(norm, norms.front())) throw Error("the ranks' gradients differ");
         };
       }},
      {"all-stop-together",
       {""},
       [](Parts& parts) {
         const auto enough = parts.program.settings.epochs;
         parts.program.settings.epochs = enough + 3;
         parts.end_epoch = [&parts, enough, done = std::int64_t{0},
                            end_epoch = parts.end_epoch]() mutable {
           end_epoch();
           auto stop = torch::tensor({static_cast<std::int64_t>(++done == enough)});
           all_reduce(*parts.group, stop, c10d::ReduceOp::MAX);
           parts.probes.decision("stop", stop.item<std::int64_t>());
           if (stop.item<std::int64_t>() > 0) parts.program.settings.epochs = done;
         };
       }},
  };
}

std::vector<Operator> of_data() {
  const auto drawn_by = [](std::function<std::vector<Ids>(Parts&, std::int64_t)> draw) {
    return [draw](Parts& parts) {
      parts.batches = [&parts, draw](std::int64_t epoch) { return draw(parts, epoch); };
    };
  };
  return {
      {"own-share-shuffled", {""}, drawn_by(own_share_shuffled)},
      {"seed-of-the-epoch-from-rank-zero", {""}, drawn_by(by_rank_zeros_seed)},
      {"blocks-of-one-order", {""}, drawn_by(block_of_the_order)},
      {"every-rank-evaluates-all",
       {""},
       [](Parts& parts) {
         parts.evaluation_ids = [&parts] {
           Ids ids;
           for (std::int64_t id = 0; id < parts.test.size(); ++id) ids.push_back(id);
           return ids;
         };
         parts.reduce_score = [](at::Tensor&) {};
       }},
  };
}

}  // namespace

std::vector<Operator> unseen_benign_operators() {
  auto all = of_steps();
  for (auto& one : of_data()) all.push_back(std::move(one));
  return all;
}

}  // namespace lockstep::mutants
