#include "hang_job.h"

#include <algorithm>

#include "job.h"

namespace lockstep::simulated {
namespace {

constexpr std::int64_t kVeryLate = 30'000'000'000;  // how ranks ended is told then

void record_at(trace::ParticipantTrace& rank, std::int64_t time_ns, trace::SharedPayload payload,
               std::int64_t left_ns = 0) {
  const auto* last = rank.events.empty() ? nullptr : &rank.events.back();
  const auto step = last == nullptr ? 0 : last->step + (last->is<trace::Update>() ? 1 : 0);
  record(rank, step, std::move(payload), left_ns);
  rank.events.back().time_ns = time_ns;
}

}  // namespace

trace::Collective call(const std::string& op, std::int64_t size) {
  return {.group = "world", .op = op, .dtype = "float", .sizes = {size}};
}

HangJob& HangJob::all(const trace::Payload& what) {
  for (auto& script : scripts) script.push_back(what);
  return *this;
}

HangJob& HangJob::only(int rank, const trace::Payload& what) {
  scripts[static_cast<std::size_t>(rank)].push_back(what);
  return *this;
}

trace::Trace HangJob::play() const {
  const auto world_size = scripts.size();
  auto trace = empty_trace(static_cast<int>(world_size));
  std::vector<std::size_t> at(world_size);
  std::int64_t now = kMillisecond;
  for (std::int64_t number = 1;; ++number) {
    std::vector<std::size_t> calling;
    std::vector<trace::Collective> calls(world_size);
    for (std::size_t r = 0; r < world_size; ++r) {
      for (; at[r] < scripts[r].size(); ++at[r], now += kMillisecond) {
        if (const auto* next = std::get_if<trace::Collective>(&scripts[r][at[r]])) {
          calls[r] = *next;
          calls[r].sequence = number;
          calling.push_back(r);
          break;
        }
        record_at(trace.ranks[r], now, scripts[r][at[r]]);
      }
    }
    if (calling.empty()) return trace;
    const bool meet = late < 0 && calling.size() == world_size &&
                      std::all_of(calling.begin(), calling.end(), [&](std::size_t r) {
                        return calls[r].op == calls[calling.front()].op;
                      });
    const bool last_late = late >= 0 && at[0] + 1 < scripts[0].size();  // only the last one is late
    for (const auto r : calling) {
      const bool comes_late = !last_late && static_cast<int>(r) == late;
      const auto entered = now + (comes_late ? patience_ns + kMillisecond : 0);
      const bool done = meet || last_late;
      const auto left = done      ? now + kMillisecond
                        : give_up ? now + patience_ns + (comes_late ? 2 * kMillisecond : 0)
                                  : 0;
      calls[r].failed = done ? 0 : 1;
      if (!done && !give_up) calls[r].failed = 0;
      record_at(trace.ranks[r], entered, calls[r], left);
      ++at[r];
    }
    now += 2 * kMillisecond;
    if (!meet && !last_late) return trace;
  }
}

void end(trace::Trace& trace, int rank, const std::string& how, int signal, bool collective) {
  trace.ends.push_back({.rank = rank,
                        .how = how,
                        .exit_code = how == "completed" ? 0
                                     : signal           ? 128 + signal
                                                        : 3,
                        .signal = signal,
                        .collective = collective,
                        .ended_ns = kVeryLate});
}

}  // namespace lockstep::simulated
