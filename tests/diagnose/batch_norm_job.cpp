#include "batch_norm_job.h"

#include <algorithm>
#include <numeric>

#include "expect.h"

namespace lockstep::simulated {
namespace {

constexpr std::int64_t kChannels = 3;
constexpr std::int64_t kDrawn = 5;  // samples that a rank draws of an evaluation's data

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
      if (job_.evaluation && job_.evaluation->before == step) {
        if (job_.collects_anew) collect_anew(step);
        evaluate_all(*job_.evaluation, step);
      }
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
      batches_.push_back(0);
      record(rank, -1, trace::Model{{"weight", "bn"}, {{2, 3}, {kChannels}}, {"float", "float"}});
      record(rank, -1, trace::Engine{"distributed_data_parallel", 2});
      if (job_.tells_layer) record(rank, -1, trace::LayerModes{{{0, 1, !job_.frozen}}});
      record(rank, -1, trace::Parameters{summarize(draw_values(7, 0, 0))});
      record_buffers(r, -1);
      if (job_.evaluation) record_data_sets(r);
    }
  }

  void record_data_sets(int rank) {
    const auto record_one = [&](const std::string& phase, std::int64_t size) {
      record(trace_.ranks[rank], -1,
             trace::Dataset{phase, size, size, 0, 0, static_cast<std::uint64_t>(size)});
    };
    const std::int64_t all = kDrawn * job_.world_size;
    record_one("train", job_.evaluation->of_training_data ? all : 1000);
    record_one("evaluation", all);
  }

  // Running statistics, how many batches they are of, and a constant.
  void record_buffers(int rank, int step) {
    const Values variance(kChannels, 1.0);
    record(trace_.ranks[rank], step,
           trace::Buffers{{"running_mean", "running_var", "num_batches_tracked", "scale"},
                          {summarize(running_[rank]), summarize(variance),
                           summarize(Values{batches_[rank]}), summarize(Values{3})}});
  }
  void move_statistics(int rank, const Values& mean) {
    ++batches_[rank];
    for (std::size_t c = 0; c < mean.size(); ++c)
      running_[rank][c] = 0.9 * running_[rank][c] + 0.1 * mean[c];
  }

  void collective(int step, const std::string& op, std::int64_t size) {
    ++sequence_;
    for (auto& rank : trace_.ranks)
      record(rank, step,
             trace::Collective{0,
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
    batches_.assign(batches_.size(), double(batches_.front()));
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
        move_statistics(r, used);
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

  void draw(int rank, int step, std::int64_t first) {
    Ids ids(kDrawn);
    std::iota(ids.begin(), ids.end(), first + rank * kDrawn);
    record(trace_.ranks[rank], step, trace::PassBegin{"evaluation", 0});
    record(trace_.ranks[rank], step, trace::Samples{"evaluation", ids});
  }

  // The recorder calls any pass without gradients one of evaluation.
  void collect_anew(int step) {
    for (int r = 0; r < job_.world_size; ++r) {
      draw(r, step, 1000);
      move_statistics(r, draw_values(5, 0, step)[1]);
      record(trace_.ranks[r], step, trace::Forward{true});
      record(trace_.ranks[r], step, trace::PassEnd{"evaluation", 0, 1});
    }
  }

  void evaluate_all(const WholeEvaluation& how, int step) {
    for (int r = 0; r < job_.world_size; ++r) {
      auto& rank = trace_.ranks[r];
      const bool training = how.training(r);
      draw(r, step, 0);
      if (!how.through_engine) {
        // Nothing is told.
      } else if (!training) {
        evaluate(r, step);
      } else {
        record(rank, step, trace::Forward{true});
        if (how.moves_statistics) move_statistics(r, draw_values(6, 0, step)[1]);
      }
      record(rank, step, trace::PassEnd{"evaluation", 0, 1});
      if (std::count(how.telling.begin(), how.telling.end(), r))
        record(
            rank, step,
            trace::Metric{"accuracy", how.phase, 1, static_cast<double>(kDrawn * job_.world_size)});
    }
  }

  const BatchNormJob& job_;
  trace::Trace trace_;
  std::int64_t sequence_ = 0;
  std::vector<Values> running_;
  Values batches_;  // that each rank's running statistics are of
};

}  // namespace

BatchNormJob::BatchNormJob(int ranks)
    : world_size(ranks), counts(static_cast<std::size_t>(ranks), 8), evaluating(all_ranks(ranks)) {
  counts.back() = 3;
}

trace::Trace BatchNormJob::run() const {
  return Simulation(*this).run();
}

}  // namespace lockstep::simulated
