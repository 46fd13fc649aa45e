#include "device_job.h"

#include "tensors.h"

namespace lockstep::simulated {
namespace {

constexpr std::int64_t kBytes = 1'000;  // of the parameters, and of their gradients

// Running statistics after `steps`, and a constant that never moves.
trace::Buffers buffers_after(std::int64_t steps) {
  return {{"running_mean", "scale"},
          {summarize(Values{0.5 * static_cast<double>(steps), 1}), summarize(Values{3})}};
}

void transfer(trace::Trace& trace, std::int64_t step, int from, int to, std::int64_t bytes,
              const char* what) {
  record(trace.ranks[to], step, trace::Transfer{from, to, bytes, what});
}

void move_gradients(trace::Trace& trace, std::int64_t step, DeviceJob::Reduction how) {
  const int count = trace.world_size;
  if (how == DeviceJob::Reduction::gather)
    for (int d = 1; d < count; ++d) {
      transfer(trace, step, d, 0, kBytes, "gradients");
      transfer(trace, step, 0, d, kBytes, "parameters");
    }
  if (how == DeviceJob::Reduction::ring)
    for (int d = 0; d < count; ++d)
      for (int hop = 0; hop < 2 * (count - 1); ++hop)
        transfer(trace, step, d, (d + 1) % count, kBytes / count, "gradients");
}

}  // namespace

DeviceJob::DeviceJob(int count) : devices(count) {
  for (int step = 0; step < 4; ++step) {
    Ids sizes(static_cast<std::size_t>(count), 4);
    if (step % 2 == 1) sizes.back() = 2;
    batches.push_back(sizes);
  }
}

trace::Trace DeviceJob::run() const {
  auto trace = empty_trace(devices, "device");
  for (auto& device : trace.ranks) {
    record(device, -1, trace::Parameters{summarize(draw_values(7, 0, 0))});
    if (has_buffers) record(device, -1, buffers_after(0));
  }
  std::int64_t kept = 0;  // steps the first device's own statistics saw
  for (std::size_t s = 0; s < batches.size(); ++s) {
    const auto step = static_cast<std::int64_t>(s);
    const auto& sizes = batches[s];
    record(trace.ranks[0], step, trace::Split{devices, sizes});
    if (dies_in_last && s + 1 == batches.size()) break;
    std::int64_t samples = 0;
    for (const auto size : sizes) samples += size;
    std::vector<Values> reduced{Values(6, 0.0), Values(3, 0.0)};
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      record(trace.ranks[d], step, trace::Forward{training});
      const auto local = draw_values(1, static_cast<std::int64_t>(d), step);
      add(reduced, local,
          weighted ? static_cast<double>(sizes[d]) / static_cast<double>(samples)
                   : 1.0 / static_cast<double>(sizes.size()));
      record(trace.ranks[d], step, trace::LocalGradients{sizes[d], summarize(local)});
    }
    move_gradients(trace, step, reduction);
    const auto before = kept;
    if (training && !first_runs_a_copy) ++kept;
    for (std::size_t d = 0; d < trace.ranks.size(); ++d) {
      auto& device = trace.ranks[d];
      // Other devices' gradients stay their own.
      if (d < sizes.size())
        record(device, step,
               trace::ReducedGradients{
                   d == 0 ? summarize(reduced)
                          : summarize(draw_values(1, static_cast<std::int64_t>(d), step))});
      record(device, step, trace::Update{{0.1}});
      // Copies are as the model was before the step; theirs are not the parameters that train.
      record(device, step, trace::Parameters{summarize(draw_values(7, d == 0 ? 0 : 1, step))});
      if (has_buffers)
        record(device, step,
               d == 0 ? buffers_after(kept) : buffers_after(training ? before + 1 : before));
    }
  }
  return trace;
}

}  // namespace lockstep::simulated
