#include "share_job.h"

#include "../diagnose/job.h"
#include "../diagnose/tensors.h"

namespace lockstep::compare {
namespace {

using simulated::add;
using simulated::record;
using simulated::Tensors;

constexpr std::uint64_t kStart = 7, kSample = 8, kNoise = 9;
constexpr double kLoss = 2;  // of each sample, falling by the step

class Simulation {
 public:
  explicit Simulation(const ShareJob& job)
      : job_(job),
        trace_(simulated::empty_trace(job.ranks)),
        parameters_(simulated::draw_values(kStart, 0, 0)) {}

  trace::Trace run() {
    for (auto& rank : trace_.ranks) {
      record(rank, -1, trace::Model{{"weight", "bias"}, {{2, 3}, {3}}, {"float", "float"}});
      record(rank, -1, trace::Dataset{"train", samples(), samples(), 11, 12, 13});
      record(rank, -1, trace::Parameters{simulated::summarize(parameters_)});
    }
    for (std::int64_t step = 0; step < job_.updates; ++step) train(step);
    return std::move(trace_);
  }

 private:
  std::int64_t samples() const { return job_.updates * job_.global_batch; }

  simulated::Ids share(int rank, std::int64_t step) const {
    simulated::Ids ids;
    for (std::int64_t i = rank; i < job_.global_batch; i += job_.ranks)
      ids.push_back(step * job_.global_batch + i);
    return ids;
  }

  // The mean of the samples' own gradients, off by the noise.
  Tensors gradient(int rank, std::int64_t step, const simulated::Ids& ids) const {
    Tensors mean;
    for (const auto id : ids)
      add(mean, simulated::draw_values(kSample, id, 0), 1.0 / static_cast<double>(ids.size()));
    add(mean, simulated::draw_values(kNoise, rank, step), job_.noise);
    return mean;
  }

  void train(std::int64_t step) {
    std::vector<Tensors> local;
    Tensors reduced;
    for (int r = 0; r < job_.ranks; ++r) {
      const auto ids = share(r, step);
      const auto count = static_cast<std::int64_t>(ids.size());
      record(trace_.ranks[r], step, trace::Samples{"train", ids});
      record(trace_.ranks[r], step, trace::Forward{true});
      record(trace_.ranks[r], step, trace::Loss{kLoss, kLoss * static_cast<double>(count), count});
      local.push_back(gradient(r, step, ids));
      add(reduced, local.back(),
          static_cast<double>(count) / static_cast<double>(job_.global_batch));
    }
    add(parameters_, reduced, -job_.lr);
    for (int r = 0; r < job_.ranks; ++r) {
      auto& rank = trace_.ranks[r];
      const bool probed = job_.probes(step);
      if (probed) {
        record(
            rank, step,
            trace::LocalGradients{job_.global_batch / job_.ranks, simulated::summarize(local[r])});
        record(rank, step, trace::ReducedGradients{simulated::summarize(reduced)});
      }
      record(rank, step, trace::Update{{job_.lr}});
      if (!probed) continue;
      record(rank, step, trace::Parameters{simulated::summarize(parameters_)});
      record(rank, step, trace::Buffers{{"mean"}, simulated::summarize(Tensors{parameters_[1]})});
    }
  }

  const ShareJob& job_;
  trace::Trace trace_;
  Tensors parameters_;
};

}  // namespace

trace::Trace ShareJob::run() const {
  return Simulation(*this).run();
}

}  // namespace lockstep::compare
