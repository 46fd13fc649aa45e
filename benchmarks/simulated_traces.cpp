#include "simulated_traces.h"

#include <lockstep/base/hash.h>
#include <lockstep/trace/writer.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

namespace lockstep::benchmark {
namespace {

constexpr int kBatch = 32, kPasses = 2, kEvaluationBatch = 8, kRanksOfANode = 8;
constexpr std::int64_t kEveryValues = 64;  // and steps 0 to 3, as record::Probes
constexpr double kRate = 0.1;

using Ids = std::vector<std::int64_t>;
using Tensor = std::array<double, trace::kSketch>;
using Tensors = std::vector<Tensor>;

// Six layers, in four buckets.
const trace::Model& model() {
  static const trace::Model kModel = [] {
    trace::Model made;
    for (int layer = 0; layer < 6; ++layer)
      for (const bool weight : {true, false}) {
        made.names.push_back("layers." + std::to_string(layer) + (weight ? ".weight" : ".bias"));
        made.shapes.push_back(weight ? Ids{256, 256} : Ids{256});
        made.dtypes.emplace_back("float32");
      }
    return made;
  }();
  return kModel;
}
const Ids kBuckets = {2 * (256 * 256 + 256), 2 * (256 * 256 + 256), 256 * 256 + 256,
                      256 * 256 + 256};

std::vector<trace::Summary> summaries(const Tensors& tensors) {
  std::vector<trace::Summary> all;
  for (const auto& tensor : tensors) {
    const double square =
        std::inner_product(tensor.begin(), tensor.end(), tensor.begin(), 0.0) / trace::kSketch;
    all.push_back({hash_bytes(tensor.data(), sizeof tensor),
                   std::sqrt(square),
                   {tensor.begin(), tensor.end()}});
  }
  return all;
}

Tensors draw(std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  Tensors tensors(model().names.size());
  for (auto& tensor : tensors)
    for (auto& value : tensor) value = normal(generator);
  return tensors;
}

void add(Tensors& to, const Tensors& what, double times) {
  for (std::size_t t = 0; t < to.size(); ++t)
    for (std::size_t i = 0; i < to[t].size(); ++i) to[t][i] += times * what[t][i];
}

bool has_values(std::int64_t step) {
  return step < 4 || step % kEveryValues == 0;
}

class Simulation {
 public:
  Simulation(const std::filesystem::path& folder, const SimulatedJob& job)
      : folder_(folder), job_(job), parameters_(ranks(), draw(1)) {
    for (int rank = 0; rank < job.ranks; ++rank)
      writers_.push_back(std::make_unique<trace::Writer>(
          folder, trace::Participant{.rank = rank, .world_size = job.ranks}));
  }

  void run() {
    on_all([&](std::size_t rank) { start(rank); });
    for (int pass = 0; pass < kPasses && !died_; ++pass) {
      train(pass);
      if (!died_) evaluate(pass);
    }
    end();
  }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(job_.ranks); }
  std::int64_t batches() const { return job_.steps / kPasses; }
  std::int64_t train_size() const { return job_.ranks * batches() * kBatch; }
  std::int64_t evaluation_size() const { return job_.ranks * kEvaluationBatch; }
  bool is_odd(std::size_t rank) const { return static_cast<int>(rank) == job_.odd_rank(); }
  bool reduces() const { return job_.fault != Fault::no_reduction; }

  template <class Do>
  void on_all(Do what) {
    for (std::size_t rank = 0; rank < ranks(); ++rank) what(rank);
  }
  void record(std::size_t rank, const trace::Payload& payload) { writers_[rank]->record(payload); }

  void start(std::size_t rank) {
    const auto local = static_cast<std::int64_t>(rank) % kRanksOfANode;
    record(rank, trace::Attempt{});
    record(rank, trace::Placement{.node = 1 + rank / kRanksOfANode,
                                  .local_rank = local,
                                  .local_world_size = kRanksOfANode,
                                  .processors = 2 * kRanksOfANode,
                                  .processor_set = 1,
                                  .threads = 2});
    record(rank, trace::Intent{.global_batch = job_.ranks * kBatch,
                               .loss_reduction = "mean",
                               .reference_lr = kRate / job_.ranks,
                               .reference_world_size = 1});
    record(rank, model());
    record(rank, trace::Engine{"distributed_data_parallel",
                               static_cast<std::int64_t>(model().names.size())});
    record(rank, trace::Dataset{"train", train_size(), train_size(), 11, 12, 13});
    record(rank, trace::Dataset{"evaluation", evaluation_size(), evaluation_size(), 21, 22, 23});
    record(rank, trace::Parameters{summaries(parameters_[rank])});
    writers_[rank]->set_step(0);
  }

  // As DistributedSampler deals a shuffled set that divides by the ranks.
  Ids batch(std::size_t rank, std::int64_t number) const {
    Ids ids;
    for (std::int64_t i = number * kBatch; i < (number + 1) * kBatch; ++i)
      ids.push_back(order_[static_cast<std::size_t>(i) * ranks() + rank]);
    return ids;
  }

  void train(int pass) {
    order_.resize(static_cast<std::size_t>(train_size()));
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), std::mt19937_64(static_cast<std::uint64_t>(pass)));
    on_all([&](std::size_t rank) {
      record(rank, trace::SetEpoch{pass});
      record(rank, trace::PassBegin{"train", pass});
    });
    for (std::int64_t b = 0; b < batches() && !died_; ++b) {
      on_all([&](std::size_t rank) { backward(rank, batch(rank, b)); });
      if (reduces()) all_reduce();
      if (!died_) update();
    }
    if (died_) return;
    on_all([&](std::size_t rank) { record(rank, trace::PassEnd{"train", pass, batches()}); });
  }

  void backward(std::size_t rank, Ids ids) {
    trace::RandomNumbers numbers{ids, {}};
    for (const auto id : ids) numbers.hashes.push_back(hash_bytes(&id, sizeof id) ^ (rank + 1));
    record(rank, trace::Samples{"train", std::move(ids)});
    record(rank, numbers);
    record(rank, trace::ZeroGrad{"optimizer", static_cast<std::int64_t>(model().names.size()), 0});
    record(rank, trace::Forward{true});
    if (!has_values(step_)) return;
    const double loss = 2.0 - 0.001 * static_cast<double>(step_) + 0.0001 * (rank % 7);
    record(rank, trace::Loss{loss, loss * kBatch, kBatch});
    for (std::size_t t = model().names.size(); t-- > 0;)
      record(rank, trace::GradientArrived{static_cast<std::int64_t>(t)});
  }

  void all_reduce() {
    for (const auto elements : kBuckets) {
      ++sequence_;
      died_ = job_.fault == Fault::death && step_ == job_.death_step();
      std::vector<std::uint64_t> inside(ranks());
      const auto enters = [&](std::size_t rank) { return !died_ || !is_odd(rank); };
      on_all([&](std::size_t rank) {
        if (enters(rank))
          inside[rank] = writers_[rank]->enter(trace::Collective{
              0, 0, sequence_, "0", "allreduce", "sum", -1, "float32", {elements}});
      });
      on_all([&](std::size_t rank) {
        if (enters(rank)) writers_[rank]->leave(inside[rank], died_);
      });
      if (died_) return;
    }
  }

  void update() {
    if (has_values(step_)) {
      std::vector<Tensors> local;
      Tensors mean(model().names.size());
      on_all([&](std::size_t rank) {
        local.push_back(draw(1000 * (rank + 1) + static_cast<std::uint64_t>(step_)));
        add(mean, local.back(), 1.0 / job_.ranks);
      });
      on_all([&](std::size_t rank) {
        const auto& held = reduces() ? mean : local[rank];
        record(rank, trace::LocalGradients{kBatch, summaries(local[rank])});
        record(rank, trace::ReducedGradients{summaries(held)});
        add(parameters_[rank], held, -rate(rank));
      });
    }
    on_all([&](std::size_t rank) {
      record(rank, trace::Update{{rate(rank)}});
      record(rank, trace::Schedule{step_ + 1, job_.steps});
      if (has_values(step_)) record(rank, trace::Parameters{summaries(parameters_[rank])});
      writers_[rank]->set_step(step_ + 1);
    });
    ++step_;
  }

  double rate(std::size_t rank) const {
    return job_.fault == Fault::learning_rate && is_odd(rank) ? 2 * kRate : kRate;
  }

  void evaluate(int pass) {
    on_all([&](std::size_t rank) {
      record(rank, trace::PassBegin{"evaluation", pass});
      Ids ids;
      for (auto id = static_cast<std::int64_t>(rank); id < evaluation_size(); id += job_.ranks)
        ids.push_back(id);
      record(rank, trace::Samples{"evaluation", std::move(ids)});
      record(rank, trace::Forward{false});
      const auto all = static_cast<double>(evaluation_size());
      record(rank, trace::Metric{"accuracy", "evaluation", all / 2, all});
      record(rank, trace::PassEnd{"evaluation", pass, 1});
    });
  }

  void end() {
    trace::Writer launcher(folder_, {.world_size = job_.ranks, .kind = "launcher"});
    on_all([&](std::size_t rank) {
      trace::RankEnd ended{.rank = static_cast<std::int64_t>(rank), .how = "completed"};
      if (died_ && is_odd(rank)) {
        ended.how = "signalled", ended.signal = SIGKILL, ended.exit_code = 128 + SIGKILL;
        // A killed rank closes nothing. Its writer lives as long as this process.
        [[maybe_unused]] const auto* killed = writers_[rank].release();
      } else if (died_) {
        ended.how = "raised", ended.exit_code = 1, ended.collective = true;
      }
      launcher.record(ended);
    });
  }

  std::filesystem::path folder_;
  SimulatedJob job_;
  std::vector<std::unique_ptr<trace::Writer>> writers_;
  std::vector<Tensors> parameters_;
  Ids order_;  // of the pass
  std::int64_t step_ = 0, sequence_ = 0;
  bool died_ = false;
};

}  // namespace

void write_traces(const std::filesystem::path& folder, const SimulatedJob& job) {
  Simulation(folder, job).run();
}

}  // namespace lockstep::benchmark
