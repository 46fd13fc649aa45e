#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/diagnose.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/nearest.h>
#include <lockstep/diagnose/replica_groups.h>

#include <algorithm>
#include <deque>
#include <iterator>

namespace lockstep::diagnose {
namespace {

// What a detector found.
struct Found {
  const Detector* detector;
  const std::vector<Finding>* findings;
  const Finding& first() const { return findings->front(); }
};

bool accounts_for(const Found& cause, const Found& effect) {
  const auto& follow = cause.detector->accounts_for;
  // It may be a choice, and accounts for no violation, nor for what breaks another equation.
  if (cause.first().severity != Severity::violation)
    return effect.first().severity != Severity::violation &&
           cause.detector->equation == effect.detector->equation &&
           std::find(follow.begin(), follow.end(), effect.detector->slug) != follow.end();
  // What collectives mixed up accounts for nothing that came before it.
  if (std::find(follow.begin(), follow.end(), effect.detector->slug) != follow.end())
    return cause.detector->stage != Stage::collectives || cause.first().step <= effect.first().step;
  if (effect.detector->is_consequence && cause.detector != effect.detector &&
      cause.first().step <= effect.first().step)
    return true;
  return cause.detector->stage != Stage::none && cause.detector->stage < effect.detector->stage;
}

// What follows from this one, or from what does.
std::vector<std::string> following(const Found& cause, const std::vector<Found>& all) {
  std::vector<const Found*> chain{&cause};
  for (std::size_t i = 0; i < chain.size(); ++i)
    for (const auto& effect : all)
      if (accounts_for(*chain[i], effect) &&
          std::find(chain.begin(), chain.end(), &effect) == chain.end())
        chain.push_back(&effect);
  std::vector<std::string> slugs;
  for (std::size_t i = 1; i < chain.size(); ++i) slugs.push_back(chain[i]->detector->slug);
  std::sort(slugs.begin(), slugs.end());
  return slugs;
}

// Named violations, named advice, generic findings, and what many right programs have.
int place(const Finding& finding) {
  if (detector_of(finding.pitfall)->common) return 3;
  if (is_generic(finding.pitfall)) return 2;
  return finding.severity == Severity::violation ? 0 : 1;
}

// "it began between steps 8 and 16", where the steps between were not recorded.
void tell_bracket(Finding& finding) {
  if (finding.after >= 0 && finding.after + 1 < finding.step)
    finding.evidence +=
        fmt::format("; it began between steps {} and {}", finding.after, finding.step);
}

// With what their detectors say of this run.
std::vector<Nearest> nearest_in(const std::vector<Row>& rows, const std::string& generic) {
  auto nearest = nearest_to(generic);
  for (auto& one : nearest)
    for (const auto& row : rows)
      if (row.slug == one.pitfall) {
        one.state = row.verdict.state;
        one.reason = row.verdict.reason;
      }
  return nearest;
}

// Of each of the parts that train a model of their own, together.
Verdict verdict_of(const Detector& detector, const Run& run, const std::deque<Run>& parts) {
  if (parts.empty() || detector.looks_at_all()) return detector.verdict(run);
  auto whole = detector.verdict(parts.front());
  for (auto part = parts.begin() + 1; part != parts.end(); ++part) {
    auto verdict = detector.verdict(*part);
    if (verdict.state < whole.state) std::swap(whole, verdict);
    std::move(verdict.findings.begin(), verdict.findings.end(), std::back_inserter(whole.findings));
  }
  return whole;
}

bool has_end(const trace::Trace& trace, const trace::ParticipantTrace& rank) {
  return rank.closed || rank.runs ||
         std::any_of(trace.ends.begin(), trace.ends.end(),
                     [&](const auto& end) { return end.rank == rank.participant.rank; });
}

std::string at_step(std::int64_t step) {
  return step < 0 ? "before training" : fmt::format("at step {}", step);
}

// What is missing of one rank.
std::vector<std::string> missing_of(const trace::Trace& trace,
                                    const trace::ParticipantTrace& rank) {
  const auto name = fmt::format("rank {}", rank.participant.rank);
  const auto ends =
      fmt::format("{}'s trace ends {}", name,
                  rank.events.empty() ? "before an event" : at_step(rank.events.back().step));
  std::vector<std::string> texts;
  if (rank.had_no_room)
    texts.push_back(ends + ": it had no room for more (a full disk, or 4 GiB)");
  else if (!has_end(trace, rank))
    texts.push_back(ends + ", and not in order: the process was ended, or the file was cut");
  for (const auto& at : rank.latest<trace::RecordingEnd>())
    texts.push_back(fmt::format("{} recorded no more of {} {} (the job's output says why)", name,
                                at.event->of, at_step(at.step)));
  return texts;
}

std::vector<std::string> incomplete(const trace::Trace& trace) {
  std::vector<std::string> texts;
  for (const auto& rank : trace.ranks)
    for (auto& text : missing_of(trace, rank)) texts.push_back(std::move(text));
  return texts;
}

}  // namespace

Diagnosis diagnose(const trace::Trace& trace) {
  const Run run(trace);
  Diagnosis diagnosis{.rows = {},
                      .ledger = {},
                      .findings = {},
                      .replica_groups = replica_groups(run),
                      .incomplete = incomplete(trace),
                      .sharded_by = sharded_by(run)};
  std::deque<Run> parts;
  if (diagnosis.replica_groups.size() > 1)
    for (const auto& members : diagnosis.replica_groups)
      if (std::any_of(members.begin(), members.end(), [&](int rank) {
            return std::binary_search(run.numbers.begin(), run.numbers.end(), rank);
          }))
        parts.emplace_back(run, members);  // of the others nothing was recorded
  for (const auto& detector : detectors()) {
    diagnosis.rows.push_back({detector.slug, verdict_of(detector, run, parts)});
    for (auto& finding : diagnosis.rows.back().verdict.findings) tell_bracket(finding);
  }
  diagnosis.ledger = ledger_of(run, diagnosis.rows);
  std::vector<Found> all;
  for (std::size_t i = 0; i < diagnosis.rows.size(); ++i)
    if (const auto& findings = diagnosis.rows[i].verdict.findings; !findings.empty())
      all.push_back({&detectors()[i], &findings});
  for (const auto& one : all) {
    if (std::any_of(all.begin(), all.end(),
                    [&](const Found& cause) { return accounts_for(cause, one); }))
      continue;
    for (auto finding : *one.findings) {
      finding.accounts_for = following(one, all);
      finding.nearest = nearest_in(diagnosis.rows, finding.pitfall);
      diagnosis.findings.push_back(std::move(finding));
    }
  }
  std::stable_sort(diagnosis.findings.begin(), diagnosis.findings.end(),
                   [](const Finding& a, const Finding& b) { return place(a) < place(b); });
  return diagnosis;
}

}  // namespace lockstep::diagnose
