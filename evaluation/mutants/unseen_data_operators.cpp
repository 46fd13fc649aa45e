// The fourth set's faults of samples, figures, collectives and ends.
#include <lockstep/train/seeding.h>
#include <sys/resource.h>

#include <csignal>
#include <new>
#include <thread>

#include "operators.h"

namespace lockstep::mutants {
namespace {

const std::vector<Engine> kOneBatchAnUpdate{Engine::ddp, Engine::sharded};

DistributedSampler sampler_of(const Parts& parts, int world_size, int rank) {
  return DistributedSampler({.dataset_size = parts.train.size(),
                             .num_replicas = world_size,
                             .rank = rank,
                             .seed = parts.place.seed});
}

void change_batches(Parts& parts, std::function<void(std::vector<Ids>&, std::int64_t)> change) {
  parts.batches = [change, batches = parts.batches](std::int64_t epoch) {
    auto mine = batches(epoch);
    change(mine, epoch);
    return mine;
  };
}

std::function<void(Parts&)> on_rank(int rank, std::function<void(Parts&)> act) {
  return [rank, act](Parts& parts) {
    if (parts.place.rank == rank) act(parts);
  };
}

// The epoch's order, each rank's part of every global batch in proportion to its rank + 1.
std::vector<Ids> growing_shares(Parts& parts, std::int64_t epoch) {
  const std::int64_t w = parts.place.world_size, rank = parts.place.rank;
  parts.probes.set_epoch(epoch);
  auto all = sampler_of(parts, 1, 0);
  all.set_epoch(epoch);
  const auto begin = [&](std::int64_t n, std::int64_t of) {
    return n * of * (of + 1) / (w * (w + 1));
  };
  std::vector<Ids> mine;
  for (const auto& batch : all.batches(w * parts.program.settings.batch)) {
    const auto n = static_cast<std::int64_t>(batch.size());
    mine.emplace_back(batch.begin() + begin(n, rank), batch.begin() + begin(n, rank + 1));
  }
  return mine;
}

std::vector<Operator> of_samples() {
  auto all = shown_in(
      {"samples", "contents", "ended"},
      {
          {"epoch-told-to-another-sampler",
           {"set-epoch-on-copy"},
           [](Parts& parts) {
             parts.batches = [&parts](std::int64_t epoch) {
               auto another = sampler_of(parts, parts.place.world_size, parts.place.rank);
               parts.probes.set_epoch(epoch);
               another.set_epoch(epoch);
               return parts.sampler.batches(parts.program.settings.batch);
             };
           }},
          {"first-batch-fetched-before-the-epoch-is-told",
           {"epoch-set-after-prefetch"},
           [](Parts& parts) {
             parts.batches = [&parts](std::int64_t epoch) {
               const auto size = parts.program.settings.batch;
               const auto early = parts.sampler.batches(size).front();
               parts.sampler.set_epoch(epoch);
               auto mine = parts.sampler.batches(size);
               mine.front() = early;
               return mine;
             };
             parts.fetch = [&parts, fetch = parts.fetch, told = std::int64_t{-1}](
                               const Ids& ids, std::int64_t epoch) mutable {
               if (std::exchange(told, epoch) != epoch) parts.probes.set_epoch(epoch);
               return fetch(ids, epoch);
             };
           }},
          {"one-rank-counts-epochs-one-behind",
           {"epoch-differs-by-rank"},
           on_rank(1,
                   [](Parts& parts) {
                     parts.batches = [batches = parts.batches](std::int64_t epoch) {
                       return batches(std::max<std::int64_t>(0, epoch - 1));
                     };
                   })},
          {"a-neighbours-first-batch",
           {"shards-overlap"},
           on_rank(1,
                   [](Parts& parts) {
                     change_batches(parts, [&parts](auto& mine, std::int64_t epoch) {
                       auto neighbour = sampler_of(parts, parts.place.world_size, 0);
                       neighbour.set_epoch(epoch);
                       mine.front() = neighbour.batches(parts.program.settings.batch).front();
                     });
                   })},
          {"read-by-two-workers-of-every-rank",
           {"stream-not-sharded"},
           [](Parts& parts) {
             parts.batches = [&parts](std::int64_t epoch) {
               parts.probes.set_epoch(epoch);
               auto stream = sampler_of(parts, 1, 0);
               stream.set_epoch(epoch);
               std::vector<Ids> both;
               for (const auto& batch : stream.batches(parts.program.settings.batch))
                 both.insert(both.end(), 2, batch);
               return both;
             };
           }},
          {"short-batch-dropped-on-one-rank",
           {"uneven-batches"},
           on_rank(1,
                   [](Parts& parts) {
                     change_batches(parts, [](auto& mine, std::int64_t) { mine.pop_back(); });
                   }),
           [](Program& program) { program.settings.batch = 20; },
           kOneBatchAnUpdate},
          {"damaged-batch-passed-over-on-one-rank",
           {"uneven-batches"},
           on_rank(1,
                   [](Parts& parts) {
                     change_batches(parts, [](auto& mine, std::int64_t epoch) {
                       if (epoch == 0) mine.erase(mine.begin() + 2);
                     });
                   })},
          {"rows-shifted-on-one-rank",
           {"dataset-unseeded"},
           on_rank(1, [](Parts& parts) { parts.train.inputs = parts.train.inputs.roll(1, 0); })},
          {"test-rows-on-one-rank",
           {"dataset-unseeded"},
           on_rank(1,
                   [](Parts& parts) {
                     Ids rows;
                     for (std::int64_t id = 0; id < parts.train.size(); ++id)
                       rows.push_back(id % parts.test.size());
                     parts.train = take(parts.test, rows);
                   })},
          {"dice-of-the-epoch-not-of-the-rank",
           {"same-augmentation-everywhere"},
           [](Parts& parts) {
             change_batches(parts, [&parts](auto&, std::int64_t epoch) {
               parts.dice.set_current_seed(sample_seed(parts.place.seed, epoch, 0));
             });
           },
           {},
           {Engine::ddp}},
      });
  const auto of_means = shown_in(
      {"gradient"},
      {{"shares-that-grow-with-the-rank",
        {"mean-of-local-means"},
        [](Parts& parts) {
          parts.batches = [&parts](std::int64_t epoch) { return growing_shares(parts, epoch); };
        }},
       {"microbatches-of-two-sizes",
        {"mean-of-microbatch-means"},
        [](Parts& parts) {
          change_batches(parts, [](auto& mine, std::int64_t) {
            for (std::size_t b = 0; b + 1 < mine.size(); b += 2) {
              auto &more = mine[b], &less = mine[b + 1];
              const auto half = less.begin() + static_cast<std::ptrdiff_t>(less.size() / 2);
              more.insert(more.end(), less.begin(), half);
              less.erase(less.begin(), half);
            }
          });
        },
        {},
        {Engine::by_hand}}});
  all.insert(all.end(), of_means.begin(), of_means.end());
  return all;
}

std::vector<Operator> of_figures() {
  return shown_in(
      {"score", "ended"},
      {
          {"hits-kept-counts-reduced",
           {"local-hits-global-count"},
           [](Parts& parts) {
             parts.reduce_score = [&parts](at::Tensor& total) {
               auto count = total[1].clone();
               all_reduce(*parts.group, count);
               total[1] = count;
             };
           }},
          {"last-test-sample-again-on-short-ranks",
           {"evaluation-padding"},
           [](Parts& parts) {
             parts.evaluation_ids = [&parts, evaluation_ids = parts.evaluation_ids] {
               auto ids = evaluation_ids();
               const auto w = static_cast<std::int64_t>(parts.place.world_size);
               ids.resize(static_cast<std::size_t>((parts.test.size() + w - 1) / w), ids.back());
               return ids;
             };
           }},
          {"score-reduced-on-one-rank-only",
           {"rank-conditional-collective"},
           [](Parts& parts) {
             if (parts.place.rank != 0) parts.reduce_score = [](at::Tensor&) {};
           }},
          {"greatest-score-on-one-rank",
           {"reduce-op-mismatch"},
           on_rank(0,
                   [](Parts& parts) {
                     parts.reduce_score = [&parts](at::Tensor& total) {
                       all_reduce(*parts.group, total, c10d::ReduceOp::MAX);
                     };
                   })},
          {"guesses-of-unequal-shares-gathered",
           {"shape-mismatch"},
           [](Parts& parts) {
             parts.reduce_score = [&parts, reduce_score = parts.reduce_score](at::Tensor& total) {
               const auto n = static_cast<std::int64_t>(parts.evaluation_ids().size());
               all_gather(*parts.group, torch::full({n}, parts.place.rank, torch::kInt64));
               reduce_score(total);
             };
           }},
          {"rank-zero-writes-a-long-report",
           {"rank-zero-long-work"},
           on_rank(0,
                   [](Parts& parts) {
                     parts.reduce_score = [&parts,
                                           reduce_score = parts.reduce_score](at::Tensor& total) {
                       std::this_thread::sleep_for(parts.place.timeout * 9 /
                                                   8);  // the fault itself
                       reduce_score(total);
                     };
                   })},
          {"no-memory-for-the-test-set-on-one-rank",
           {"one-rank-raises"},
           on_rank(1,
                   [](Parts& parts) {
                     parts.evaluation_ids = []() -> Ids { throw std::bad_alloc(); };
                   })},
          {"one-rank-aborts-after-its-first-pass",
           {"peer-dies"},
           on_rank(1,
                   [](Parts& parts) {
                     parts.end_epoch = [] {
                       const rlimit none{0, 0};
                       setrlimit(RLIMIT_CORE, &none);
                       std::raise(SIGABRT);
                     };
                   })},
          {"one-rank-stops-by-its-own-loss",
           {"local-early-stop"},
           [](Parts& parts) {
             parts.end_epoch = [&parts, end_epoch = parts.end_epoch] {
               end_epoch();
               const bool stops = parts.place.rank == 1;
               parts.probes.decision("stop", stops);
               if (stops) parts.program.settings.epochs = 1;
             };
           }},
      });
}

std::vector<Operator> of_collectives() {
  return shown_in(
      {"ended", "gradient", "replicas", "update"},
      {
          {"half-precision-on-one-rank",
           {"dtype-mismatch"},
           on_rank(1,
                   [](Parts& parts) {
                     parts.tampering->allreduce = [](Tensors& tensors, auto options,
                                                     const auto& inner) {
                       if (tensors.at(0).scalar_type() != torch::kFloat32)
                         return inner(tensors, options);
                       Tensors coarse{tensors.at(0).to(torch::kHalf)};
                       inner(coarse, options)->wait();
                       tensors.at(0).copy_(coarse.at(0));
                       return done(tensors);
                     };
                   }),
           {},
           kNotDdp},
          {"one-rank-gathers-what-others-reduce",
           {"order-mismatch"},
           on_rank(1,
                   [](Parts& parts) {
                     parts.reduce = [&parts] {
                       for (auto& parameter : parts.parameters) {
                         auto& gradient = parameter.mutable_grad();
                         gradient.copy_(torch::stack(all_gather(*parts.group, gradient)).mean(0));
                       }
                     };
                   }),
           {},
           {Engine::by_hand}},
          {"owners-counted-from-one-on-one-rank",
           {"root-mismatch"},
           on_rank(1,
                   [](Parts& parts) {
                     parts.tampering->broadcast = [&parts](Tensors& tensors, auto options,
                                                           const auto& inner) {
                       if (parts.optimizer)
                         options.rootRank = (options.rootRank + 1) % parts.place.world_size;
                       return inner(tensors, options);
                     };
                   }),
           {},
           {Engine::sharded}},
          {"word-to-go-on-before-the-loss-on-one-rank",
           {"order-mismatch"},
           on_rank(1,
                   [](Parts& parts) {
                     parts.share = [&parts] {
                       auto stop = torch::zeros({1}, torch::kInt64);
                       broadcast(*parts.group, stop);
                       auto loss = parts.last_loss.clone();
                       all_reduce(*parts.group, loss);
                     };
                   }),
           {},
           {Engine::by_hand}},
      });
}

}  // namespace

std::vector<Operator> unseen_data_operators() {
  auto all = of_samples();
  for (const auto& some : {of_figures(), of_collectives()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

}  // namespace lockstep::mutants
