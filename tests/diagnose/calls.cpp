#include "calls.h"

#include <lockstep/report/page.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <variant>

namespace lockstep::simulated {
namespace {

// As event_name() calls them. In a lesson `loss` is told by cross_entropy or tell_loss.
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
      {"probes",
       {"device", "shard", "spawn", "data_file", "stream_use", "shared_memory", "store_call use",
        "attempt that is the last"}},
      {"launcher", {}},
  };
  return kEvents;
}

// By its kind; where the library tells some of a kind and the program others, which of them it is.
std::string event_name(const trace::Event& event) {
  const std::string kind = trace::name_of(event.payload.index());
  if (const auto* call = event.as<trace::StoreCall>()) return kind + " " + call->action;
  const auto* attempt = event.as<trace::Attempt>();
  return attempt != nullptr && attempt->max_restarts == 0 ? kind + " that is the last" : kind;
}

// The recorder's word of a backward whose losses nobody has told.
void leave_its_value(trace::Event& event) {
  if (const auto* loss = event.as<trace::Loss>())
    event.payload = trace::SharedPayload(trace::Backward{loss->backward_value});
}

}  // namespace

std::set<std::string> calls_of_page(const std::string& slug) {
  static const auto kPages = report::all_pages(LOCKSTEP_SOURCE_DIR);
  std::set<std::string> calls;
  std::istringstream list(kPages.at(slug).facts.at("calls"));
  for (std::string call; std::getline(list >> std::ws, call, ',');) calls.insert(call);
  calls.erase("none");
  return calls;
}

std::vector<std::string> calls_that_a_trace_tells() {
  std::vector<std::string> calls;
  for (const auto& [call, events] : events_of_calls()) calls.push_back(call);
  return calls;
}

trace::Trace without_call(trace::Trace trace, const std::string& call) {
  if (call == "launcher") trace.ends.clear();
  const auto& gone = events_of_calls().at(call);
  const auto is_gone = [&](const trace::Event& event) { return gone.count(event_name(event)) > 0; };
  for (auto& rank : trace.ranks) {
    if (call == "loss") std::for_each(rank.events.begin(), rank.events.end(), leave_its_value);
    const auto latest = rank.events.begin() + static_cast<std::ptrdiff_t>(rank.last_attempt);
    rank.last_attempt -=
        static_cast<std::size_t>(std::count_if(rank.events.begin(), latest, is_gone));
    std::erase_if(rank.events, is_gone);
  }
  return trace;
}

}  // namespace lockstep::simulated
