#include "scale_job.h"

#include <lockstep/trace/writer.h>

#include <algorithm>
#include <csignal>
#include <memory>

namespace lockstep::simulated {
namespace {

constexpr int kPasses = 2, kEvaluationBatch = 8;

void let_one_die(trace::Trace& trace, std::int64_t step) {
  for (auto& rank : trace.ranks) {
    const bool dies = rank.participant.rank == kOddRank;
    auto end = std::find_if(rank.events.begin(), rank.events.end(), [&](const trace::Event& event) {
      return event.step == step && event.is<trace::Collective>();
    });
    if (!dies) end++->change<trace::Collective>()->failed = 1;
    rank.events.erase(end, rank.events.end());
    rank.closed = !dies;
    auto& told = trace.ends[static_cast<std::size_t>(rank.participant.rank)];
    told.how = dies ? "signalled" : "raised";
    told.exit_code = dies ? 128 + SIGKILL : 1;
    told.signal = dies ? SIGKILL : 0;
    told.collective = !dies;
  }
}

}  // namespace

trace::Trace ScaleJob::run() const {
  Job job(ranks);
  job.every_event = true;
  job.recorded_losses = job.recorded_steps;
  job.layers = layers;
  job.passes = kPasses;
  job.batch = batch;
  const auto samples_of_rank = steps / kPasses * batch;
  job.samples = ranks * samples_of_rank;
  job.evaluation_samples = ranks * kEvaluationBatch;
  // As deal() has it, which would shuffle once for each rank.
  std::vector<Ids> shuffled;
  for (int pass = 0; pass < kPasses; ++pass) shuffled.push_back(permutation(job.samples, pass));
  job.order = [&](int rank, int pass) {
    Ids ids;
    for (std::int64_t i = 0; i < samples_of_rank; ++i)
      ids.push_back(shuffled.at(pass)[static_cast<std::size_t>(i * ranks + rank)]);
    return ids;
  };
  job.equal_start = fault != Fault::unequal_start;
  job.reduce = fault != Fault::no_reduction;
  if (fault == Fault::learning_rate) job.lr = [](int rank) { return rank == kOddRank ? 0.2 : 0.1; };
  auto trace = job.run();
  for (int rank = 0; rank < ranks; ++rank) trace.ends.push_back({.rank = rank, .how = "completed"});
  if (fault == Fault::death) let_one_die(trace, steps * 3 / 5);
  return trace;
}

void write_traces(const std::filesystem::path& folder, const trace::Trace& trace) {
  std::vector<std::unique_ptr<trace::Writer>> writers;
  std::size_t longest = 0;
  for (const auto& rank : trace.ranks) {
    writers.push_back(std::make_unique<trace::Writer>(folder, rank.participant));
    longest = std::max(longest, rank.events.size());
  }
  for (std::size_t i = 0; i < longest; ++i) {
    std::vector<std::pair<std::uint64_t, bool>> inside(writers.size());
    for (std::size_t r = 0; r < writers.size(); ++r) {
      if (i >= trace.ranks[r].events.size()) continue;
      const auto& event = trace.ranks[r].events[i];
      writers[r]->set_step(event.step);
      if (const auto* call = event.as<trace::Collective>()) {
        auto entered = *call;
        entered.failed = 0;
        inside[r] = {writers[r]->enter(entered), call->failed != 0};
      } else {
        event.payload.visit([&](const auto& payload) { writers[r]->record(payload); });
      }
    }
    for (std::size_t r = 0; r < writers.size(); ++r)
      writers[r]->leave(inside[r].first, inside[r].second);  // of none: nothing
  }
  trace::Writer launcher(folder, {.world_size = trace.world_size, .kind = "launcher"});
  for (const auto& end : trace.ends) launcher.record(end);
  // A killed rank closes nothing. Its writer lives as long as this process.
  for (std::size_t r = 0; r < writers.size(); ++r)
    if (!trace.ranks[r].closed) static_cast<void>(writers[r].release());
}

}  // namespace lockstep::simulated
