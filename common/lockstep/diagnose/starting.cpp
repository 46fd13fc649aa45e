// Pitfalls of a job's start and end: its store, its processes, its data.
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/launch_detectors.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <optional>
#include <set>

namespace lockstep::diagnose {
namespace {

using trace::StoreCall;

struct Call {
  int rank;
  std::int64_t begun_ns;  // when the rank began to join its group; of others time_ns
  std::int64_t time_ns;
  const StoreCall* event;
};

std::vector<Call> calls(const Run& run, const std::string& action) {
  std::vector<Call> all;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const auto groups = run.ranks[r]->latest<trace::Group>();
    for (const auto& at : run.ranks[r]->latest<StoreCall>()) {
      if (at.event->action != action) continue;
      Call call{run.numbers[r], at.time_ns, at.time_ns, at.event};
      for (const auto& group : groups)
        if (group.event->action == "join" && group.time_ns <= at.time_ns)
          call.begun_ns = group.time_ns;
      all.push_back(call);
    }
  }
  return all;
}

std::string where(const StoreCall& call) {
  const bool v6 = call.address.find(':') != std::string::npos;
  return (v6 ? "[" + call.address + "]" : call.address) + ", port " + std::to_string(call.port);
}

const char* const kNoStore = "no call of a TCP store was recorded";

}  // namespace

Verdict fixed_port(const trace::Trace& trace) {
  const Run run(trace);
  const auto served = calls(run, "serve");
  if (served.empty()) return not_triggered(kNoStore);
  for (const auto& call : served)
    if (call.event->error == EADDRINUSE)
      return found({.pitfall = "fixed-port",
                    .ranks = {call.rank},
                    .evidence = "rank " + std::to_string(call.rank) +
                                " was to serve the store at " + where(*call.event) +
                                ", which another process has"});
  return clean();
}

Verdict wrong_network_interface(const trace::Trace& trace) {
  const Run run(trace);
  if (run.world_size < 2) return not_applicable("one rank connects to nobody");
  const auto served = calls(run, "serve"), connected = calls(run, "connect");
  if (served.empty() || connected.empty()) return not_triggered(kNoStore);
  const auto& server = served.front();
  if (server.event->error != 0 && server.event->error != ETIMEDOUT) return clean();
  std::vector<int> failed;
  const StoreCall* failure = nullptr;
  for (const auto& call : connected) {
    if (call.event->error == 0 || call.event->port != server.event->port) continue;
    // Who comes when the others have given up, or nearly, is late, and no matter of interfaces.
    const auto waited = call.time_ns - call.begun_ns;
    if (server.begun_ns > call.time_ns - waited / 2) continue;
    failed.push_back(call.rank);
    if (failure == nullptr) failure = call.event;
  }
  if (failure == nullptr) return clean();
  const bool few = 2 * failed.size() < connected.size() + 1;
  return found({.pitfall = "wrong-network-interface",
                .ranks = few ? failed : std::vector<int>{server.rank},
                .evidence = "rank " + std::to_string(server.rank) + " serves the store at " +
                            where(*server.event) + "; " +
                            ranks_text(failed, "went to ", "went to ") + where(*failure) +
                            ", and nobody answered"});
}

Verdict group_never_destroyed(const trace::Trace& trace) {
  const Run run(trace);
  if (run.world_size < 2) return not_applicable("one rank leaves nobody behind");
  const auto served = calls(run, "serve"), uses = calls(run, "use");
  if (served.empty() || uses.empty())
    return not_triggered("no rank served a store, or none used it later, as far as recorded");
  const int server = served.front().rank;
  const auto end = std::find_if(trace.ends.begin(), trace.ends.end(),
                                [&](const auto& one) { return one.rank == server; });
  if (end == trace.ends.end())
    return not_triggered("the launcher left no word of how the ranks ended");
  const auto at = std::find(run.numbers.begin(), run.numbers.end(), server);
  const auto& rank = *run.ranks[static_cast<std::size_t>(at - run.numbers.begin())];
  const auto groups = rank.latest<trace::Group>();
  const bool let_go = std::any_of(groups.begin(), groups.end(),
                                  [](const auto& group) { return group.event->action == "leave"; });
  std::vector<int> cut_off;
  for (const auto& use : uses)
    if (use.event->error != 0 && use.time_ns > rank.events.back().time_ns)
      cut_off.push_back(use.rank);
  if (cut_off.empty() || let_go || end->how != "completed") return clean();
  return found({.pitfall = "group-never-destroyed",
                .ranks = {server},
                .evidence = "rank " + std::to_string(server) +
                            " served the store and left without letting go of its group; then " +
                            ranks_text(cut_off, "found", "found") + " the store gone"});
}

Verdict spawn_under_launcher(const trace::Trace& trace) {
  const Run run(trace);
  if (run.devices) return not_triggered("one process drives the devices");
  if (run.world_size < 2) return not_applicable("a single process may well be the launcher");
  bool any = false;
  std::vector<int> ranks;
  std::int64_t processes = 0;
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    for (const auto& at : run.ranks[r]->latest<trace::Spawn>()) {
      any = true;
      if (at.event->world_size < 2) continue;
      if (ranks.empty() || ranks.back() != run.numbers[r]) ranks.push_back(run.numbers[r]);
      processes += at.event->processes;
    }
  if (!any) return not_triggered("no rank started processes, as far as recorded");
  if (ranks.empty()) return clean();
  return found({.pitfall = "spawn-under-launcher",
                .ranks = ranks,
                .evidence = ranks_text(ranks, "is a rank", "are ranks") + " of " +
                            std::to_string(run.world_size) + " already, and started " +
                            std::to_string(processes) + " processes that are ranks again"});
}

namespace {

// From write_begin to write_end; without an end it goes on.
struct Writing {
  int rank;
  std::uint64_t file;
  std::int64_t begin_ns, end_ns;
};

std::vector<Writing> writings_of(const Run& run) {
  std::vector<Writing> all;
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    for (const auto& at : run.ranks[r]->latest<trace::DataFile>()) {
      if (at.event->action == "write_begin")
        all.push_back(
            {run.numbers[r], at.event->file, at.time_ns, std::numeric_limits<std::int64_t>::max()});
      if (at.event->action != "write_end") continue;
      const auto begun = std::find_if(all.rbegin(), all.rend(), [&](const Writing& one) {
        return one.rank == run.numbers[r] && one.file == at.event->file;
      });
      if (begun != all.rend()) begun->end_ns = at.time_ns;
    }
  return all;
}

// Who did that with the file while it was being written; nothing where nobody did.
std::optional<int> intruder(const Run& run, const Writing& writing, const std::string& action) {
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    for (const auto& at : run.ranks[r]->latest<trace::DataFile>())
      if (run.numbers[r] != writing.rank && at.event->file == writing.file &&
          at.event->action == action && at.time_ns > writing.begin_ns &&
          at.time_ns < writing.end_ns)
        return run.numbers[r];
  return std::nullopt;
}

}  // namespace

Verdict every_rank_prepares_data(const trace::Trace& trace) {
  const Run run(trace);
  if (run.world_size < 2) return not_applicable("one rank is alone with its files");
  const auto writings = writings_of(run);
  if (writings.empty()) return not_triggered("no rank wrote a file of the data set");
  for (const std::string action : {"read", "write_begin"})
    for (const auto& writing : writings) {
      std::set<int> ranks;
      for (const auto& other : writings)
        if (other.file == writing.file) ranks.insert(other.rank);
      const auto other = intruder(run, writing, action);
      if (ranks.size() < 2 || !other) continue;
      const std::vector<int> writers(ranks.begin(), ranks.end());
      return found({.pitfall = "every-rank-prepares-data",
                    .ranks = writers,
                    .evidence = ranks_text(writers, "writes", "write") +
                                " one file of the data set; rank " + std::to_string(*other) +
                                (action == "read" ? " read it" : " began to write it") +
                                " while rank " + std::to_string(writing.rank) + " wrote"});
    }
  return clean();
}

}  // namespace lockstep::diagnose
