#include "calls.h"

#include <lockstep/course/page.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>
#include <stdexcept>
#include <variant>

namespace lockstep::contract {
namespace {

namespace fs = std::filesystem;

// By their kinds. In a lesson `loss` is told by cross_entropy or tell_loss.
const std::map<std::string, std::set<std::string>>& events_of_calls() {
  static const std::map<std::string, std::set<std::string>> kEvents{
      {"loss", {"loss"}},
      {"intent", {"intent"}},
      {"metric", {"metric"}},
      {"decision", {"decision"}},
      {"random_numbers", {"random_numbers"}},
      {"training_state", {"training_state"}},
      {"average", {"average"}},
      {"async_result", {"async_result"}},
      {"probes", {"device", "shard", "spawn", "data_file", "stream_use", "shared_memory"}},
      {"launcher", {}},
  };
  return kEvents;
}

std::string kind_of(const trace::Event& event) {
  return std::visit([](const auto& payload) { return std::string(payload.kName); }, event.payload);
}

}  // namespace

std::set<std::string> calls_of_page(const std::string& slug) {
  const fs::path source = LOCKSTEP_SOURCE_DIR;
  for (const auto& lesson : fs::directory_iterator(source / "lessons")) {
    if (!fs::exists(lesson.path() / "pitfalls" / (slug + ".md"))) continue;
    const auto page = course::read_page(source, lesson.path().filename(), slug);
    std::set<std::string> calls;
    std::istringstream list(page.facts.at("calls"));
    for (std::string call; std::getline(list >> std::ws, call, ',');) calls.insert(call);
    calls.erase("none");
    return calls;
  }
  throw std::runtime_error(slug + " has no page");
}

std::vector<std::string> calls_that_a_trace_tells() {
  std::vector<std::string> calls;
  for (const auto& [call, events] : events_of_calls()) calls.push_back(call);
  return calls;
}

trace::Trace without_call(trace::Trace trace, const std::string& call) {
  if (call == "launcher") trace.ends.clear();
  const auto& gone = events_of_calls().at(call);
  const auto is_gone = [&](const trace::Event& event) { return gone.count(kind_of(event)) > 0; };
  for (auto& rank : trace.ranks) {
    const auto latest = rank.events.begin() + static_cast<std::ptrdiff_t>(rank.last_attempt);
    rank.last_attempt -=
        static_cast<std::size_t>(std::count_if(rank.events.begin(), latest, is_gone));
    std::erase_if(rank.events, is_gone);
  }
  return trace;
}

}  // namespace lockstep::contract
