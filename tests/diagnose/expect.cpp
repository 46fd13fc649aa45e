#include "expect.h"

#include <gtest/gtest.h>
#include <lockstep/diagnose/detector.h>

#include <algorithm>
#include <numeric>
#include <regex>
#include <set>

namespace lockstep::simulated {
namespace {

using Fields =
    std::tuple<std::string, std::string, std::vector<int>, std::int64_t, std::int64_t, std::string>;

// Evidence tells a tensor's name, in quotes, where it has one; nothing else may depend on names.
std::string without_names(const std::string& evidence) {
  static const std::regex name(" \\(\"[^\"]*\"\\)");
  return std::regex_replace(evidence, name, "");
}

std::vector<Fields> fields_of(const trace::Trace& trace) {
  std::vector<Fields> all;
  for (const auto& f : diagnose::diagnose(trace).findings)
    all.emplace_back(f.pitfall, diagnose::to_string(f.severity), f.ranks, f.step, f.sequence,
                     without_names(f.evidence));
  return all;
}

// The same run, with the ranks' traces in another order, and everything that could be a name gone.
trace::Trace blinded(trace::Trace trace) {
  std::rotate(trace.ranks.begin(), trace.ranks.begin() + 1, trace.ranks.end());
  std::reverse(trace.ranks.begin() + 1, trace.ranks.end());
  // Where a checkpoint's keys were recorded, how the parameters are called is what is judged.
  bool keys = false;
  for (const auto& rank : trace.ranks) keys |= !rank.all<trace::CheckpointFile>().empty();
  // Of several groups, which call is of which is what is judged.
  std::set<std::string> groups;
  for (const auto& rank : trace.ranks)
    for (const auto& at : rank.all<trace::Collective>()) groups.insert(at.event->group);
  for (auto& rank : trace.ranks)
    for (auto& event : rank.events) {
      if (auto* model = event.change<trace::Model>(); model && !keys) model->names.clear();
      if (auto* buffers = event.change<trace::Buffers>()) buffers->names.clear();
      if (auto* metric = event.change<trace::Metric>()) metric->name.clear();
      if (auto* call = event.change<trace::Collective>(); call && groups.size() == 1)
        call->group.clear();
    }
  return trace;
}

std::string told_text(const trace::Trace& trace) {
  std::string text;
  for (const auto& finding : diagnose::diagnose(trace).findings)
    text += finding.pitfall + ": " + finding.evidence + "\n";
  return text;
}

}  // namespace

std::vector<int> all_ranks(int world_size) {
  std::vector<int> ranks(static_cast<std::size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<int> odd_one_out(int world_size, int rank) {
  return world_size == 2 ? all_ranks(2) : std::vector<int>{rank};
}

void expect_only(const trace::Trace& trace, const std::string& slug, const std::vector<int>& ranks,
                 std::int64_t step, diagnose::Severity severity) {
  const auto findings = diagnose::diagnose(trace).findings;
  ASSERT_EQ(findings.size(), 1u) << told_text(trace);
  EXPECT_EQ(findings[0].pitfall, slug);
  EXPECT_EQ(findings[0].ranks, ranks);
  if (step >= -1) {
    EXPECT_EQ(findings[0].step, step);
  }
  EXPECT_EQ(findings[0].severity, severity);
  EXPECT_FALSE(findings[0].evidence.empty());
  EXPECT_EQ(fields_of(blinded(trace)), fields_of(trace));
}

void expect_nothing(const trace::Trace& trace) {
  EXPECT_EQ(told_text(trace), "");
  EXPECT_EQ(told_text(blinded(trace)), "");
}

trace::Trace cut_at(trace::Trace trace, std::size_t length) {
  for (auto& rank : trace.ranks) {
    rank.events.resize(std::min(rank.events.size(), length++));
    rank.closed = false;
  }
  return trace;
}

std::string evidence(const trace::Trace& trace) {
  return diagnose::diagnose(trace).findings.at(0).evidence;
}

diagnose::State state(const trace::Trace& trace, const std::string& slug) {
  if (const auto* detector = diagnose::detector_of(slug))
    return detector->verdict(diagnose::Run(trace)).state;
  ADD_FAILURE() << "no detector is called " << slug;
  return diagnose::State::not_triggered;
}

}  // namespace lockstep::simulated
