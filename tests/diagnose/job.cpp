#include "job.h"

#include <lockstep/base/hash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "tensors.h"

namespace lockstep::simulated {
namespace {

// Runs the job's passes and keeps what the ranks hold between them.
class JobSimulation {
 public:
  explicit JobSimulation(const Job& job) : job_(job), trace_(empty_trace(job.world_size)) {}

  trace::Trace run() {
    start();
    for (int pass = 0; pass < job_.passes; ++pass) {
      train(pass);
      evaluate(pass);
    }
    return std::move(trace_);
  }

 private:
  void start() {
    for (int pass = 0; pass < job_.passes; ++pass) length_ += batches_of(pass);
    for (int r = 0; r < job_.world_size; ++r) {
      auto& rank = trace_.ranks[r];
      if (job_.every_event) record_place(r);
      if (job_.declares_mean)
        record(rank, -1,
               trace::Intent{.loss_reduction = "mean",
                             .reference_lr = job_.reference_lr,
                             .reference_world_size = job_.reference_world_size});
      auto model = model_of_layers();
      if (std::count(job_.odd_shape_on.begin(), job_.odd_shape_on.end(), r)) model.shapes[1] = {4};
      record(rank, -1, model);
      if (job_.has_engine)
        record(rank, -1, trace::Engine{"distributed_data_parallel", 2 * job_.layers});
      record(rank, -1, job_.dataset ? job_.dataset(r) : whole("train", job_.samples));
      record(rank, -1, whole("evaluation", evaluation_samples()));
      parameters_.push_back(draw_layers(7, job_.equal_start ? 0 : r, 0));
      gradients_.emplace_back();
      record(rank, -1, trace::Parameters{summarize(parameters_.back())});
    }
  }

  trace::Model model_of_layers() const {
    trace::Model model;
    for (int layer = 0; layer < job_.layers; ++layer)
      for (const bool weight : {true, false}) {
        model.names.push_back((weight ? "weight" : "bias") + std::to_string(layer));
        model.shapes.push_back(weight ? Ids{2, 3} : Ids{3});
        model.dtypes.emplace_back("float");
      }
    return model;
  }

  Tensors draw_layers(std::uint64_t seed, std::int64_t a, std::int64_t b) const {
    Tensors all;
    for (int layer = 0; layer < job_.layers; ++layer)
      for (auto& tensor : draw_values(seed + 100u * static_cast<unsigned>(layer), a, b))
        all.push_back(std::move(tensor));
    return all;
  }

  static trace::Dataset whole(const std::string& phase, std::int64_t samples) {
    return {phase, samples, samples, 11, 12, 13};
  }

  std::int64_t evaluation_samples() const {
    return job_.evaluation_samples > 0 ? job_.evaluation_samples : job_.samples;
  }

  void record_place(int r) {
    constexpr int kRanksOfANode = 8;
    const int node = r / kRanksOfANode;
    record(trace_.ranks[r], -1, trace::Attempt{});
    record(trace_.ranks[r], -1,
           trace::Placement{
               .node = 1u + static_cast<unsigned>(node),
               .local_rank = r % kRanksOfANode,
               .local_world_size = std::min(kRanksOfANode, job_.world_size - node * kRanksOfANode),
               .processors = 2 * kRanksOfANode,
               .processor_set = 1,
               .threads = 2});
  }

  Ids order(int rank, int pass) const {
    if (job_.order) return job_.order(rank, pass);
    return deal({job_.samples, job_.world_size}, rank, pass);
  }

  std::int64_t batches_of(int pass) const {
    std::int64_t longest = 0;
    for (int r = 0; r < job_.world_size; ++r)
      longest = std::max<std::int64_t>(longest, order(r, pass).size());
    return std::min((longest + job_.batch - 1) / job_.batch, job_.most_batches);
  }

  void tell(int pass, Job::Tell when) {
    for (int r = 0; r < job_.world_size; ++r) {
      const auto epoch = job_.told ? job_.told(r, pass) : pass;
      if (job_.tell == when && epoch) record(trace_.ranks[r], step_, trace::SetEpoch{*epoch});
    }
  }

  void train(int pass) {
    tell(pass, Job::Tell::before_pass);
    for (auto& rank : trace_.ranks)
      record(rank, step_, trace::PassBegin{"train", job_.numbers_passes ? pass : 0});
    tell(pass, Job::Tell::after_begin);
    std::vector<Ids> orders;
    for (int r = 0; r < job_.world_size; ++r) orders.push_back(order(r, pass));
    const auto batches = batches_of(pass);
    for (std::int64_t b = 0; b < batches; ++b) {
      for (int r = 0; r < job_.world_size; ++r) draw(r, "train", orders[r], b);
      if (b == 0) tell(pass, Job::Tell::after_first_batch);
      update();
    }
    tell(pass, Job::Tell::at_end);
    for (auto& rank : trace_.ranks) record(rank, step_, trace::PassEnd{"train", pass, batches});
  }

  void draw(int rank, const std::string& phase, const Ids& order, std::int64_t batch) {
    const auto begin = std::min<std::size_t>(order.size(), batch * job_.batch);
    const auto end = std::min<std::size_t>(order.size(), begin + job_.batch);
    if (begin == end) return;
    const Ids ids(order.begin() + begin, order.begin() + end);
    record(trace_.ranks[rank], step_, trace::Samples{phase, ids});
    if (!job_.every_event) return;
    const bool training = phase == "train";
    if (training) {
      trace::RandomNumbers numbers{ids, {}};
      for (const auto id : ids) {
        const std::int64_t key[] = {id, rank, step_};
        numbers.hashes.push_back(hash_bytes(key, sizeof key));
      }
      record(trace_.ranks[rank], step_, numbers);
      record(trace_.ranks[rank], step_, trace::ZeroGrad{"optimizer", 2 * job_.layers, 0});
    }
    record(trace_.ranks[rank], step_, trace::Forward{training});
  }

  void update() {
    std::vector<Tensors> local;
    for (int r = 0; r < job_.world_size; ++r) local.push_back(backward(r));
    if (job_.zero_gradients) gradients_.assign(gradients_.size(), {});
    for (int r = 0; r < job_.world_size; ++r) add(gradients_[r], local[r], 1);
    if (job_.reduce) {
      Tensors scaled;
      add(scaled, mean(gradients_), job_.reduced_times);
      for (auto& held : gradients_) held = scaled;
      if (job_.every_event) record_reduction();
    }
    for (int r = 0; r < job_.world_size; ++r) add(parameters_[r], gradients_[r], -job_.lr(r));
    if (job_.average_parameters) {
      const auto average = mean(parameters_);
      for (auto& held : parameters_) held = average;
    }
    for (int r = 0; r < job_.world_size; ++r) record_values(r, local[r]);
    ++step_;
  }

  // Losses of 2 per sample; the loss that backward starts from is their mean, times loss_times.
  Tensors backward(int rank) {
    Tensors local;
    for (int part = 0; part < job_.backwards; ++part) {
      const double share = job_.loss_times / job_.backwards;
      if (step_ < job_.recorded_losses)
        record(trace_.ranks[rank], step_, trace::Loss{2 * share, 2.0 * 4, 4});
      add(local, draw_layers(1, rank, 100 * step_ + part), share);
      for (int p = 2 * job_.layers - 1; job_.every_event && values_wanted() && p >= 0; --p)
        record(trace_.ranks[rank], step_, trace::GradientArrived{p});
    }
    return local;
  }

  bool values_wanted() const { return step_ < job_.recorded_steps; }

  void record_reduction() {
    for (int layer = 0; layer < job_.layers; ++layer) {
      ++sequence_;
      for (auto& rank : trace_.ranks) record(rank, step_, call(sequence_, "0", "allreduce", -1, 9));
    }
  }

  void record_values(int r, const Tensors& local) {
    auto& rank = trace_.ranks[r];
    if (values_wanted()) {
      record(rank, step_, trace::LocalGradients{job_.batch, summarize(local)});
      record(rank, step_, trace::ReducedGradients{summarize(gradients_[r])});
    }
    record(rank, step_, trace::Update{{job_.lr(r)}});
    record(rank, step_, trace::Schedule{step_ + 1, length_});
    if (values_wanted()) record(rank, step_, trace::Parameters{summarize(parameters_[r])});
  }

  void evaluate(int pass) {
    for (int r = 0; r < job_.world_size; ++r) {
      auto& rank = trace_.ranks[r];
      Ids order;
      if (job_.evaluation_order)
        order = job_.evaluation_order(r, pass);
      else
        for (std::int64_t id = r; id < evaluation_samples(); id += job_.world_size)
          order.push_back(id);
      record(rank, step_, trace::PassBegin{"evaluation", pass});
      const auto batches = static_cast<std::int64_t>((order.size() + job_.batch - 1) / job_.batch);
      for (std::int64_t b = 0; b < batches; ++b) draw(r, "evaluation", order, b);
      record(rank, step_, trace::PassEnd{"evaluation", pass, batches});
      const double count = job_.evaluation_count ? job_.evaluation_count(r, pass)
                                                 : static_cast<double>(evaluation_samples());
      record(rank, step_, trace::Metric{"accuracy", "evaluation", count / 2, count});
    }
  }

  const Job& job_;
  trace::Trace trace_;
  std::int64_t step_ = 0;
  std::int64_t length_ = 0;    // of the run, in updates
  std::int64_t sequence_ = 0;  // of all-reduces
  std::vector<Tensors> parameters_, gradients_;
};

}  // namespace

trace::Summary summarize(const Values& values) {
  trace::Summary summary;
  summary.hash = hash_bytes(values.data(), values.size() * sizeof(double));
  summary.sketch.assign(trace::kSketch, 0.0);
  for (std::size_t i = 0; i < values.size(); ++i) {
    summary.norm += values[i] * values[i];
    for (std::size_t k = 0; k < summary.sketch.size(); ++k) {
      const std::uint64_t at[] = {i, k};
      summary.sketch[k] += hash_bytes(at, sizeof at) & 1 ? values[i] : -values[i];
    }
  }
  summary.norm = std::sqrt(summary.norm);
  return summary;
}

std::vector<Values> draw_values(std::uint64_t seed, std::int64_t a, std::int64_t b) {
  const std::int64_t key[] = {static_cast<std::int64_t>(seed), a, b};
  std::mt19937_64 generator(hash_bytes(key, sizeof key));
  std::normal_distribution<double> normal;
  Tensors tensors{Values(6), Values(3)};
  for (auto& tensor : tensors)
    for (auto& value : tensor) value = normal(generator);
  return tensors;
}

std::vector<trace::Summary> summarize(const std::vector<Values>& tensors) {
  std::vector<trace::Summary> summaries;
  for (const auto& tensor : tensors) summaries.push_back(summarize(tensor));
  return summaries;
}

trace::Collective call(std::int64_t sequence, const std::string& group, const std::string& op,
                       std::int64_t root, std::int64_t elements) {
  return {.sequence = sequence,
          .group = group,
          .op = op,
          .reduce_op = op == "broadcast" ? "" : "sum",
          .root = root,
          .dtype = "float",
          .sizes = {elements}};
}

std::uint64_t hash_of_positions(std::int64_t samples) {
  Ids ids(static_cast<std::size_t>(samples));
  std::iota(ids.begin(), ids.end(), 0);
  return hash_bytes(ids.data(), ids.size() * sizeof(std::int64_t));
}

void record(trace::ParticipantTrace& rank, std::int64_t step, trace::SharedPayload payload,
            std::int64_t left_ns) {
  const auto time = static_cast<std::int64_t>(rank.events.size()) + 1;
  auto& event = rank.events.emplace_back(trace::Event{time, step, std::move(payload)});
  if (event.is<trace::Collective>()) event.left_ns = left_ns;
}

trace::Trace empty_trace(int world_size, const std::string& kind) {
  trace::Trace trace;
  trace.world_size = world_size;
  for (int r = 0; r < world_size; ++r)
    trace.ranks.push_back({.participant = {r, world_size, kind}, .closed = true, .events = {}});
  return trace;
}

Ids permutation(std::int64_t samples, std::int64_t epoch) {
  Ids ids(static_cast<std::size_t>(samples));
  std::iota(ids.begin(), ids.end(), 0);
  std::mt19937_64 generator(static_cast<std::uint64_t>(epoch) + 1);
  std::shuffle(ids.begin(), ids.end(), generator);
  return ids;
}

Ids deal(const Deal& how, int rank, std::int64_t epoch) {
  auto ids = permutation(how.samples, epoch);
  if (!how.shuffle) std::iota(ids.begin(), ids.end(), 0);
  const auto padded = (how.samples + how.world_size - 1) / how.world_size * how.world_size;
  const auto total = how.drop_last ? how.samples / how.world_size * how.world_size : padded;
  Ids mine;
  for (std::int64_t i = rank; i < total; i += how.world_size)
    mine.push_back(ids[static_cast<std::size_t>(i % how.samples)]);
  return mine;
}

trace::Trace Job::run() const {
  return JobSimulation(*this).run();
}

}  // namespace lockstep::simulated
