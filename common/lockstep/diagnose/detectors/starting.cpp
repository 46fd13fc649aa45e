// Pitfalls of a job's start and end: its store, its processes, its data.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/format.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <set>

namespace lockstep::diagnose {
namespace {
Verdict fixed_port(const Run& run);
Verdict wrong_network_interface(const Run& run);
Verdict group_never_destroyed(const Run& run);
Verdict spawn_under_launcher(const Run& run);
Verdict every_rank_prepares_data(const Run& run);
}  // namespace

std::vector<Detector> starting_detectors() {
  return {
      // Of several tries the last counts, and none of a rank that joined a group all the same.
      // Rule: a rank could not serve the store, since the port was taken. Under torchrun no rank
      // serves it.
      {.slug = "fixed-port",
       .equation = Equation::one_job,
       .needs = {"store_call"},
       .fewest = 1,
       .complete = false,
       .stage = Stage::start,
       .detect = fixed_port},
      // Rule: a rank served the store, and others, neither much later nor much earlier than it,
      // could not connect to where they went. To blame is the one that serves; or, where most came
      // through, those that did not.
      {.slug = "wrong-network-interface",
       .equation = Equation::one_job,
       .needs = {"store_call", "group"},
       .complete = false,
       .stage = Stage::start,
       .detect = wrong_network_interface},
      // Needs `store_call`, uses too, and the launcher's trace. Rule: a use of the store failed
      // after the rank that served it had ended in order.
      {.slug = "group-never-destroyed",
       .equation = Equation::one_job,
       .needs = {"store_call"},
       .complete = false,
       .stage = Stage::start,
       .detect = group_never_destroyed},
      // Rule: several ranks each started all processes of a job of several ranks.
      {.slug = "spawn-under-launcher",
       .equation = Equation::one_job,
       .needs = {"spawn"},
       .participants = Participants::ranks,
       .complete = false,
       .of_job = true,
       .detect = spawn_under_launcher},
      // Rule: several ranks write a file, and one of them, or a reader, came to it while another
      // wrote. Advice where nobody found half a file (and, `placement`, both are on one node).
      {.slug = "every-rank-prepares-data",
       .equation = Equation::one_job,
       .needs = {"data_file"},
       .complete = false,
       .stage = Stage::start,
       .detect = every_rank_prepares_data},
  };
}

namespace {
using trace::StoreCall;

struct StoreCallOfRank {
  int rank;
  std::optional<std::int64_t> begun_ns;  // when the rank began to join its group
  std::int64_t time_ns;
  const StoreCall* event;
};

std::vector<StoreCallOfRank> calls(const Run& run, const std::string& action) {
  std::vector<StoreCallOfRank> all;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const auto groups = run.ranks[r]->latest<trace::Group>();
    for (const auto& at : run.ranks[r]->latest<StoreCall>()) {
      if (at.event->action != action) continue;
      StoreCallOfRank call{run.numbers[r], std::nullopt, at.time_ns, at.event};
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
  return fmt::format("{}, port {}", v6 ? "[" + call.address + "]" : call.address, call.port);
}

// Of a rank that tried more than once, the last try.
std::vector<StoreCallOfRank> last_calls(const Run& run, const std::string& action) {
  std::vector<StoreCallOfRank> last;
  for (const auto& call : calls(run, action))
    if (!last.empty() && last.back().rank == call.rank)
      last.back() = call;
    else
      last.push_back(call);
  return last;
}

// Whether the rank came to a group behind this call, by whichever way.
bool joined_after(const Run& run, const StoreCallOfRank& call) {
  const auto groups = run.rank(call.rank).latest<trace::Group>();
  return std::any_of(groups.begin(), groups.end(), [&](const auto& group) {
    return group.event->action == "joined" && group.time_ns >= call.time_ns;
  });
}

const char* const kNoServer = "no rank serves a TCP store, as far as recorded";

Verdict fixed_port(const Run& run) {
  const auto served = last_calls(run, "serve");
  if (served.empty()) return not_triggered(kNoServer);
  for (const auto& call : served)
    if (call.event->error == EADDRINUSE && !joined_after(run, call))
      return found({.ranks = {call.rank},
                    .evidence = fmt::format(
                        "rank {} was to serve the store at {}, which another process has",
                        call.rank, where(*call.event))});
  return clean();
}

// The rank went to the server's port for long enough while somebody served it, and did not come through.
bool was_not_answered(const Run& run, const StoreCallOfRank& server, const StoreCallOfRank& call) {
  if (call.event->error == 0 || call.event->port != server.event->port) return false;
  if (call.event->address.empty() || joined_after(run, call)) return false;
  // Who comes when the other has given up, or nearly, is late, and no matter of interfaces.
  const auto waited = call.time_ns - *call.begun_ns;
  const auto served = server.time_ns - *server.begun_ns;
  const bool server_late = *server.begun_ns > call.time_ns - waited / 2;
  const bool client_late = server.event->error != 0 && *call.begun_ns > server.time_ns - served / 2;
  return !server_late && !client_late;
}

Verdict wrong_network_interface(const Run& run) {
  const auto served = last_calls(run, "serve"), connected = last_calls(run, "connect");
  if (served.empty()) return not_triggered(kNoServer);
  const auto& server = served.front();
  if (!server.begun_ns || connected.empty() ||
      std::any_of(connected.begin(), connected.end(), [](const auto& c) { return !c.begun_ns; }))
    return not_triggered("when the ranks began to join was not recorded");
  if (server.event->error != 0 && server.event->error != ETIMEDOUT) return clean();
  std::vector<int> failed;
  const StoreCall* failure = nullptr;
  for (const auto& call : connected) {
    if (!was_not_answered(run, server, call)) continue;
    failed.push_back(call.rank);
    if (failure == nullptr) failure = call.event;
  }
  if (failure == nullptr) return clean();
  const bool few = 2 * failed.size() < connected.size() + 1;
  return found(
      {.ranks = few ? failed : std::vector<int>{server.rank},
       .evidence = fmt::format("rank {} serves the store at {}; {}{}, and nobody answered",
                               server.rank, where(*server.event),
                               ranks_text(failed, "went to ", "went to "), where(*failure))});
}

Verdict group_never_destroyed(const Run& run) {
  const auto served = last_calls(run, "serve"), uses = calls(run, "use");
  if (served.empty()) return not_triggered(kNoServer);
  if (uses.empty()) return not_triggered("no use of the store was recorded");
  const int server = served.front().rank;
  const auto* end = run.end_of(server);
  if (end == nullptr) return not_triggered("the launcher left no word of how the ranks ended");
  const auto& rank = run.rank(server);
  const auto groups = rank.latest<trace::Group>();
  const bool let_go = std::any_of(groups.begin(), groups.end(),
                                  [](const auto& group) { return group.event->action == "leave"; });
  std::vector<int> cut_off;
  for (const auto& use : uses)
    if (use.event->error != 0 && use.time_ns > rank.events.back().time_ns &&
        std::find(cut_off.begin(), cut_off.end(), use.rank) == cut_off.end())
      cut_off.push_back(use.rank);
  if (cut_off.empty() || end->how != "completed") return clean();
  return found(
      {.ranks = {server},
       .evidence = fmt::format(
           "rank {} served the store and left{}; then {} the store gone", server,
           let_go ? ", without waiting for the others" : " without letting go of its group",
           ranks_text(cut_off, "found", "found"))});
}

Verdict spawn_under_launcher(const Run& run) {
  bool any = false;
  std::vector<int> ranks;
  std::int64_t processes = 0;
  for (std::size_t r = 0; r < run.ranks.size(); ++r)
    for (const auto& at : run.ranks[r]->latest<trace::Spawn>()) {
      any = true;
      // A whole job of its own: a node's part of a larger one is started by one rank a node.
      if (at.event->world_size < 2 || at.event->processes < at.event->world_size) continue;
      if (ranks.empty() || ranks.back() != run.numbers[r]) ranks.push_back(run.numbers[r]);
      processes += at.event->processes;
    }
  if (!any) return not_triggered("no rank started processes, as far as recorded");
  if (ranks.size() < 2) return clean();  // one rank may well serve something
  return found({.ranks = ranks,
                .evidence = fmt::format(
                    "{} of {} already, and started {} processes that are ranks again",
                    ranks_text(ranks, "is a rank", "are ranks"), run.world_size, processes)});
}

struct FileAccess {
  int rank;
  std::optional<std::uint64_t> node;
  std::int64_t time_ns;
  const trace::DataFile* event;
};

std::set<int> writers_of(const std::vector<FileAccess>& accesses) {
  std::set<int> writers;
  for (const auto& access : accesses)
    if (access.event->action == "write_begin") writers.insert(access.rank);
  return writers;
}

// By file, those that several ranks write.
std::vector<std::vector<FileAccess>> files_of_several_writers(const Run& run) {
  std::map<std::uint64_t, std::vector<FileAccess>> files;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const auto places = run.ranks[r]->latest<trace::Placement>();
    std::optional<std::uint64_t> node;
    if (!places.empty()) node = places.back().event->node;
    for (const auto& at : run.ranks[r]->latest<trace::DataFile>())
      files[at.event->file].push_back({run.numbers[r], node, at.time_ns, at.event});
  }
  std::vector<std::vector<FileAccess>> several;
  for (auto& [file, accesses] : files)
    if (writers_of(accesses).size() > 1) several.push_back(std::move(accesses));
  return several;
}

// When this writing ended; nothing where it was broken off.
std::optional<std::int64_t> end_of(const FileAccess& begin,
                                   const std::vector<FileAccess>& accesses) {
  for (const auto& access : accesses)
    if (access.rank == begin.rank && access.time_ns > begin.time_ns &&
        access.event->action != "read")
      return access.event->action == "write_end" ? std::optional(access.time_ns) : std::nullopt;
  return std::nullopt;
}

// What another rank did with the file while it was being written, if that is certain: it found half of it, or
// it shares the disk, and the writing that it fell into had its end.
const FileAccess* intruder(const FileAccess& begin, const std::vector<FileAccess>& accesses) {
  const auto end = end_of(begin, accesses);
  for (const auto& access : accesses) {
    if (access.rank == begin.rank || access.time_ns <= begin.time_ns) continue;
    if (access.event->action == "write_end" || (end && access.time_ns >= *end)) continue;
    const bool torn = access.event->action == "read" && !access.event->accepted;
    const bool one_disk = begin.node && begin.node == access.node;
    if (torn || (end && one_disk)) return &access;
  }
  return nullptr;
}

Verdict every_rank_prepares_data(const Run& run) {
  std::optional<Finding> hazard;  // nobody found half a file, this time
  for (const auto& accesses : files_of_several_writers(run))
    for (const auto& begin : accesses) {
      if (begin.event->action != "write_begin") continue;
      const auto* other = intruder(begin, accesses);
      if (other == nullptr || (other->event->accepted && hazard)) continue;
      const auto writers = writers_of(accesses);
      const std::vector<int> ranks(writers.begin(), writers.end());
      const bool torn = !other->event->accepted;
      const Finding finding{
          .severity = torn ? Severity::violation : Severity::advice,
          .ranks = ranks,
          .evidence = fmt::format("{} one file of the data set; rank {} {} while rank {} wrote",
                                  ranks_text(ranks, "writes", "write"), other->rank,
                                  torn                             ? "found half of it"
                                  : other->event->action == "read" ? "read it"
                                                                   : "began to write it",
                                  begin.rank)};
      if (torn) return found(finding);
      if (!hazard) hazard = finding;
    }
  return hazard ? found(*hazard) : clean();
}

}  // namespace
}  // namespace lockstep::diagnose
