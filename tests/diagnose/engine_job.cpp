#include "engine_job.h"

#include <lockstep/base/hash.h>

#include <algorithm>
#include <optional>
#include <random>
#include <set>

namespace lockstep::simulated {
namespace {

const std::vector<std::vector<std::int64_t>> kShapes{{4}, {3}, {2}};
using MaybeTensors = std::vector<std::optional<Values>>;  // nothing: no gradient

Values draw(std::int64_t a, std::int64_t b, std::int64_t c, std::size_t parameter) {
  const std::int64_t key[] = {a, b, c, static_cast<std::int64_t>(parameter)};
  std::mt19937_64 generator(hash_bytes(key, sizeof key));
  std::normal_distribution<double> normal;
  Values values(static_cast<std::size_t>(kShapes[parameter][0]));
  for (auto& value : values) value = normal(generator);
  return values;
}

void add(std::optional<Values>& sum, const Values& term, double times) {
  if (!sum) sum = Values(term.size(), 0.0);
  for (std::size_t i = 0; i < term.size(); ++i) (*sum)[i] += times * term[i];
}

std::vector<trace::Summary> summaries_of(const MaybeTensors& tensors, int count) {
  std::vector<trace::Summary> all;
  for (int i = 0; i < count; ++i)
    all.push_back(tensors[i] ? summarize(*tensors[i]) : trace::Summary{});
  return all;
}

struct Rank {
  MaybeTensors parameters{3}, gradients{3}, local{3};
  std::set<int> counted, cleared;
  bool armed = false, counting = false, alive = true;
  std::int64_t sequence = 0;
};

class EngineSimulation {
 public:
  explicit EngineSimulation(const EngineJob& job)
      : job_(job), trace_(empty_trace(job.world_size)) {}

  trace::Trace run() {
    for (int r = 0; r < job_.world_size; ++r) start(r);
    for (int step = 0; step < job_.steps; ++step) train(step);
    return std::move(trace_);
  }

 private:
  void record(int r, trace::SharedPayload payload, std::int64_t left_ns = 1) {
    simulated::record(trace_.ranks[r], step_, std::move(payload), left_ns);
  }
  trace::Model model(int parameters) const {
    trace::Model recorded;
    for (int i = 0; i < parameters; ++i) {
      recorded.names.push_back("p" + std::to_string(i));
      recorded.shapes.push_back(kShapes[i]);
      recorded.dtypes.push_back("float");
    }
    return recorded;
  }
  bool values_wanted() const { return step_ < job_.recorded_steps; }
  int trained() const { return std::min(job_.frozen_from, 3); }
  int held() const { return std::min(job_.frozen_at_wrapping_from, 3); }

  void start(int r) {
    record(r, trace::Intent{.loss_reduction = "mean"});
    record(r, model(held()));
    record(r, trace::Engine{"distributed_data_parallel", held()});
    if (trained() != held()) record(r, model(trained()));
    Rank rank;
    for (std::size_t p = 0; p < 3; ++p) rank.parameters[p] = draw(7, 0, 0, p);
    ranks_.push_back(rank);
    all_reduce(r, 9, true);  // before training: of no backward's gradients
    record(r, trace::Parameters{summaries_of(rank.parameters, trained())});
  }

  void train(int step) {
    step_ = step;
    std::vector<Parts> parts;
    std::size_t most = 0;
    for (int r = 0; r < job_.world_size; ++r) {
      parts.push_back(job_.parts(r, step));
      most = std::max(most, parts.back().size());
      if (ranks_[r].alive) zero_gradients(r);
    }
    for (std::size_t i = 0; i < most; ++i) {
      std::vector<int> done;
      for (int r = 0; r < job_.world_size; ++r)
        if (ranks_[r].alive && i < parts[r].size() && pass(r, static_cast<int>(i), parts[r][i]))
          done.push_back(r);
      if (!done.empty()) reduce(done);
      for (int r = 0; r < job_.world_size; ++r)
        if (ranks_[r].alive && i < parts[r].size()) end_part(r, parts[r][i]);
    }
    for (int r = 0; r < job_.world_size; ++r)
      if (ranks_[r].alive) update(r, parts[r]);
  }

  void zero_gradients(int r) {
    auto& rank = ranks_[r];
    const auto count = std::count_if(rank.gradients.begin(), rank.gradients.end(),
                                     [](const auto& gradient) { return gradient.has_value(); });
    record(r, trace::ZeroGrad{job_.zero_grad, count, job_.views ? count : 0});
    rank.alive = !(job_.views && job_.zero_grad == "optimizer" && count > 0);
    for (int p = 0; p < 3; ++p)
      if (rank.local[p]) rank.cleared.insert(p);
    for (auto* tensors : {&rank.gradients, &rank.local}) *tensors = MaybeTensors(3);
  }

  static std::int64_t new_samples(const Part& part) {
    return part.same_forward || part.same_samples ? 0 : part.samples;
  }

  // Forward and backward; true where the engine then has all it waits for.
  bool pass(int r, int i, const Part& part) {
    auto& rank = ranks_[r];
    if (new_samples(part) > 0)
      record(r, trace::Samples{"train", Ids(static_cast<std::size_t>(part.samples), r)});
    if (!part.same_forward) {
      if (rank.counting) rank.alive = false;  // the last reduction is not finished
      if (!rank.alive) return false;
      rank.armed = rank.counting = !part.no_sync && !job_.bypasses_wrapper;
      rank.counted.clear();
    }
    if (part.no_sync) record(r, trace::SyncGradients{false});
    if (!part.same_forward) record(r, trace::Forward{true});
    if (part.told_late) record(r, trace::SyncGradients{false});
    if (values_wanted())
      record(r, trace::Loss{2 * part.share, 2.0 * static_cast<double>(part.samples), part.samples});
    if (part.clears) zero_gradients(r);
    for (const int p : part.reaches) {
      if (p >= trained()) continue;
      if (values_wanted()) record(r, trace::GradientArrived{p});
      if (rank.cleared.erase(p) > 0 && values_wanted()) record(r, trace::GradientCleared{p});
      if (rank.armed && p < held() && !rank.counted.insert(p).second) rank.alive = false;
      if (!rank.alive) return false;
      const auto gradient = draw(r, step_, i, static_cast<std::size_t>(p));
      add(rank.gradients[p], gradient, part.share);
      add(rank.local[p], gradient, part.share);
    }
    if (!rank.armed) return false;
    return job_.find_unused || static_cast<int>(rank.counted.size()) == held();
  }

  void reduce(const std::vector<int>& done) {
    std::int64_t elements = 0;
    for (int p = 0; p < held(); ++p) elements += kShapes[p][0];
    const bool all = static_cast<int>(done.size()) == job_.world_size;
    for (const int r : done)
      for (int bucket = 0; bucket < job_.buckets; ++bucket) {
        const std::int64_t part = elements / job_.buckets;
        all_reduce(r, bucket == 0 ? elements - part * (job_.buckets - 1) : part, all);
      }
    for (const int r : done) {
      ranks_[r].alive = all;  // else it waits for ever
      ranks_[r].armed = ranks_[r].counting = false;
    }
    if (!all) return;
    for (int p = 0; p < held(); ++p) {
      std::optional<Values> mean;
      for (const int r : done)
        if (ranks_[r].gradients[p]) add(mean, *ranks_[r].gradients[p], 1.0 / job_.world_size);
      for (const int r : done) ranks_[r].gradients[p] = mean;
    }
  }

  void all_reduce(int r, std::int64_t elements, bool ends) {
    record(r,
           trace::Collective{
               0, ++ranks_[r].sequence, "world", "allreduce", "sum", -1, "float", {elements}},
           ends ? 1 : 0);
  }

  void end_part(int r, const Part& part) {
    if (job_.logs_loss) all_reduce(r, 1, true);
    if (part.no_sync || part.told_late) record(r, trace::SyncGradients{true});
  }

  void update(int r, const Parts& parts) {
    auto& rank = ranks_[r];
    std::int64_t samples = 0;
    for (const auto& part : parts) samples += new_samples(part);
    for (auto& gradient : rank.gradients)
      if (gradient)
        for (auto& value : *gradient) value *= job_.gradients_times;
    if (values_wanted()) {
      record(r, trace::LocalGradients{samples, summaries_of(rank.local, trained())});
      record(r, trace::ReducedGradients{summaries_of(rank.gradients, trained())});
    }
    const double lr = job_.lr(static_cast<int>(step_));
    for (std::size_t p = 0; p < 3; ++p)
      if (rank.gradients[p] && job_.optimizer_moves_model(r, static_cast<int>(step_)))
        add(rank.parameters[p], *rank.gradients[p], -lr);
    rank.local = MaybeTensors(3);
    record(r, trace::Update{{lr}});
    if (values_wanted()) record(r, trace::Parameters{summaries_of(rank.parameters, trained())});
  }

  const EngineJob& job_;
  trace::Trace trace_;
  std::int64_t step_ = -1;
  std::vector<Rank> ranks_;
};

}  // namespace

Parts accumulated(int count) {
  Parts parts(static_cast<std::size_t>(count));
  for (auto& part : parts) {
    part.share = 1.0 / count;
    part.no_sync = true;
  }
  parts.back().no_sync = false;
  return parts;
}

trace::Trace EngineJob::run() const {
  return EngineSimulation(*this).run();
}

}  // namespace lockstep::simulated
