#include "batch_norm_job.h"

#include <algorithm>
#include <numeric>

#include "expect.h"

namespace lockstep::contract {
namespace {

constexpr std::int64_t kChannels = 3;

Values weighted_mean(const std::vector<Values>& values, const Values& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  Values mean(values.front().size(), 0.0);
  for (std::size_t r = 0; r < values.size(); ++r)
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += values[r][i] * weights[r] / sum;
  return mean;
}

class Simulation {
 public:
  explicit Simulation(const BatchNormJob& job) : job_(job), trace_(empty_trace(job.world_size)) {}

  trace::Trace run() {
    start();
    for (int step = 0; step < job_.steps; ++step) {
      if (std::count(job_.look_before.begin(), job_.look_before.end(), step)) evaluate(0, step);
      for (int f = 0; f < job_.forwards; ++f) forward(step, f);
      if (step == job_.dies_in) return std::move(trace_);
      update(step);
    }
    if (job_.equalize != BatchNormJob::Equalize::never) take_rank_zeros(job_.steps);
    for (const int rank : job_.evaluating) evaluate(rank, job_.steps);
    return std::move(trace_);
  }

 private:
  void start() {
    for (int r = 0; r < job_.world_size; ++r) {
      auto& rank = trace_.ranks[r];
      running_.push_back(draw_values(3, job_.equal_start ? 0 : r, 0)[1]);
      record(rank, -1, trace::Model{{"weight", "bn"}, {{2, 3}, {kChannels}}, {"float", "float"}});
      record(rank, -1, trace::Engine{"distributed_data_parallel", 2});
      record(rank, -1, trace::Parameters{summarize(draw_values(7, 0, 0))});
      record_buffers(r, -1);
    }
  }

  // Running statistics, and a constant.
  void record_buffers(int rank, int step) {
    record(trace_.ranks[rank], step,
           trace::Buffers{{"running_mean", "scale"},
                          {summarize(running_[rank]), summarize(Values{3})}});
  }

  void collective(int step, const std::string& op, std::int64_t size) {
    ++sequence_;
    for (auto& rank : trace_.ranks)
      record(rank, step,
             trace::Collective{9,
                               0,
                               sequence_,
                               "0",
                               op,
                               op == "allreduce" ? "sum" : "",
                               op == "broadcast" ? 0 : -1,
                               "float",
                               {size}});
  }

  void take_rank_zeros(int step) {
    collective(step, "broadcast", kChannels);
    running_.assign(running_.size(), Values(running_.front()));
  }

  void forward(int step, int number) {
    if (job_.equalize == BatchNormJob::Equalize::every_forward) take_rank_zeros(step);
    std::vector<Values> own;
    for (int r = 0; r < job_.world_size; ++r)
      own.push_back(draw_values(2, r, 10 * step + number)[1]);
    const Values counts(job_.counts.begin(), job_.counts.end());
    const auto of_all = weighted_mean(own, counts);
    const auto of_means = weighted_mean(own, Values(own.size(), 1.0));
    const bool own_only = job_.mean == BatchNormJob::Mean::of_own_values;
    if (!own_only && !job_.frozen) collective(step, "allgather", 2 * kChannels + 1);
    for (int r = 0; r < job_.world_size; ++r) {
      auto& rank = trace_.ranks[r];
      const bool training = job_.training(r, step);
      const auto& used = own_only                                         ? own[r]
                         : job_.mean == BatchNormJob::Mean::of_all_values ? of_all
                                                                          : of_means;
      record(rank, step, trace::Forward{training});
      if (training && !job_.frozen) {
        for (std::size_t c = 0; c < used.size(); ++c)
          running_[r][c] = 0.9 * running_[r][c] + 0.1 * used[c];
        record(rank, step,
               trace::Average{"mean", job_.counts[r], summarize(own[r]), summarize(used)});
      }
    }
    if (job_.backward_in_between) backward(step);
  }

  void backward(int step) {
    for (auto& rank : trace_.ranks)
      for (const std::int64_t parameter : {1, 0})
        record(rank, step, trace::GradientArrived{parameter});
    collective(step, "allreduce", 9);
  }

  void update(int step) {
    if (!job_.backward_in_between) backward(step);
    std::vector<Values> first, layer;
    for (int r = 0; r < job_.world_size; ++r) {
      const auto local = draw_values(1, r, step);
      first.push_back(local[0]);
      layer.push_back(local[1]);
    }
    const Values ones(first.size(), 1.0);
    for (int r = 0; r < job_.world_size; ++r) {
      auto& rank = trace_.ranks[r];
      const std::vector<Values> reduced{weighted_mean(first, ones),
                                        job_.reduces_layer ? weighted_mean(layer, ones) : layer[r]};
      record(rank, step, trace::LocalGradients{job_.counts[r], summarize({first[r], layer[r]})});
      record(rank, step, trace::ReducedGradients{summarize(reduced)});
      record(rank, step, trace::Update{{0.1}});
      const bool apart = !job_.reduces_layer;
      record(rank, step, trace::Parameters{summarize(draw_values(7, apart ? r : 0, step + 1))});
      record_buffers(r, step);
    }
  }

  void evaluate(int rank, int step) {
    record_buffers(rank, step);
    record(trace_.ranks[rank], step, trace::Forward{false});
  }

  const BatchNormJob& job_;
  trace::Trace trace_;
  std::int64_t sequence_ = 0;
  std::vector<Values> running_;
};

}  // namespace

BatchNormJob::BatchNormJob(int ranks)
    : world_size(ranks), counts(static_cast<std::size_t>(ranks), 8), evaluating(all_ranks(ranks)) {
  counts.back() = 3;
}

trace::Trace BatchNormJob::run() const {
  return Simulation(*this).run();
}

}  // namespace lockstep::contract
