#include <lockstep/base/json_text.h>
#include <lockstep/report/job.h>
#include <lockstep/report/json.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

namespace lockstep::report {
namespace {

using nlohmann::json;

json detectors_json(const diagnose::Diagnosis& diagnosis) {
  json rows = json::array();
  for (const auto& row : diagnosis.rows)
    rows.push_back({{"slug", row.slug},
                    {"state", diagnose::to_string(row.verdict.state)},
                    {"reason", row.verdict.reason}});
  return rows;
}

// The mean loss of one rank's samples in each step; of a rank that tells none of them, of its backwards.
std::map<std::int64_t, double> losses_of(const trace::ParticipantTrace& rank) {
  struct Sum {
    double loss = 0, weight = 0;
  };
  std::map<std::int64_t, Sum> sums;
  for (const auto& at : rank.latest<trace::Loss>()) {
    const bool counted = at.event->count > 0;
    sums[at.step].loss += counted ? at.event->sum : at.event->backward_value;
    sums[at.step].weight += counted ? static_cast<double>(at.event->count) : 1;
  }
  const bool told = !sums.empty();
  if (!told)
    for (const auto& at : rank.latest<trace::Backward>()) {
      sums[at.step].loss += at.event->value;
      sums[at.step].weight += 1;
    }
  for (const auto& at : rank.latest<trace::ScaledStep>())
    if (const auto scaled = sums.find(at.step); !told && scaled != sums.end())
      scaled->second.weight *= at.event->scale;
  std::map<std::int64_t, double> losses;
  for (const auto& [step, sum] : sums) losses[step] = sum.loss / sum.weight;
  return losses;
}

// By step, of the ranks that recorded one: their mean, the lowest and the highest.
json losses_json(const trace::Trace& trace) {
  struct Spread {
    double sum = 0, low = std::numeric_limits<double>::infinity(), high = -low;
    int ranks = 0;
  };
  std::map<std::int64_t, Spread> steps;
  for (const auto& rank : trace.ranks)
    for (const auto& [step, loss] : losses_of(rank)) {
      auto& spread = steps[step];
      spread.sum += loss;
      // One rank's NaN makes the step's figures NaN.
      spread.low = std::isnan(loss) ? loss : std::min(loss, spread.low);
      spread.high = std::isnan(loss) ? loss : std::max(loss, spread.high);
      ++spread.ranks;
    }
  json points = json::array();
  const auto every = every_shown(steps.size());
  std::size_t index = 0;
  for (const auto& [step, spread] : steps)
    if (index++ % every == 0)
      points.push_back({{"step", step},
                        {"mean", spread.sum / spread.ranks},
                        {"low", spread.low},
                        {"high", spread.high}});
  return points;
}

std::optional<Stall> stall_in(const trace::Trace& trace) {
  const auto stall = diagnose::stall_of(trace);
  return stall ? std::optional(stall_of(*stall)) : std::nullopt;
}

json json_of(const diagnose::Diagnosis& diagnosis, const std::set<int>& missing) {
  return {{"ledger", json::parse(diagnose::ledger_json(diagnosis.ledger))},
          {"findings", json::parse(findings_json(diagnosis.findings))},
          {"missing_ranks", missing},
          {"incomplete", diagnosis.incomplete},
          {"detectors", detectors_json(diagnosis)}};
}

}  // namespace

std::set<int> missing_ranks(const trace::Trace& trace) {
  std::set<int> missing;
  for (int rank = 0; rank < trace.world_size; ++rank) missing.insert(rank);
  for (const auto& rank : trace.ranks) missing.erase(rank.participant.rank);
  return missing;
}

std::optional<std::string> may_be_of_two_runs(const trace::Trace& trace) {
  if (!trace.ends.empty()) return std::nullopt;  // one launcher saw them all
  const trace::ParticipantTrace *ended = nullptr, *begun = nullptr;
  for (const auto& rank : trace.ranks) {
    if (rank.events.empty()) continue;
    if (!ended || rank.events.back().time_ns < ended->events.back().time_ns) ended = &rank;
    if (!begun || rank.started_ns > begun->started_ns) begun = &rank;
  }
  if (!ended || ended == begun || ended->events.back().time_ns >= begun->started_ns)
    return std::nullopt;
  return "rank " + std::to_string(ended->participant.rank) + " had ended before rank " +
         std::to_string(begun->participant.rank) +
         " began: these traces may be of two runs; if they are, what is found means nothing";
}

std::string diagnosis_json(const diagnose::Diagnosis& diagnosis, const std::set<int>& missing) {
  return json_text(json_of(diagnosis, missing), 2) + "\n";
}

std::string job_json(const trace::Trace& trace, const diagnose::Diagnosis& diagnosis,
                     const std::set<int>& missing,
                     const std::map<std::string, report::Page>& pages) {
  auto job = json_of(diagnosis, missing);
  const bool devices = trace.ranks.front().participant.kind == "device";
  job["schema_version"] = 1;
  job["world_size"] = trace.world_size;
  job["participants"] = devices ? "devices" : "ranks";
  job["stall"] = json::parse(stall_json(stall_in(trace)));
  job["pictures"] = json::parse(pictures_json(pictures_of(trace)));
  job["losses"] = losses_json(trace);
  for (const auto& finding : diagnosis.findings)
    if (const auto page = pages.find(finding.pitfall); page != pages.end())
      job["pages"][finding.pitfall] = {{"title", page->second.title},
                                       {"symptom", page->second.section("Symptom")},
                                       {"why", page->second.section("Why")},
                                       {"fix", page->second.section("Fix")}};
  return json_text(job, 2) + "\n";
}

}  // namespace lockstep::report
