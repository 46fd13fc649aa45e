#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/base/text.h>
#include <lockstep/course/judge.h>
#include <lockstep/diagnose/diagnose.h>
#include <lockstep/diagnose/moves.h>
#include <lockstep/trace/attempts.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

namespace lockstep::course {
namespace {

nlohmann::json variant_of(const VariantRun& run) {
  return nlohmann::json::parse(read_file(run.report)).at("variants").at(0);
}

std::string figure(double value);
std::string figure(const nlohmann::json& value) {
  return value.is_number() ? figure(value.get<double>()) : "none";
}
std::string figure(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

// What a rank did, as often as it did it.
struct Work {
  std::size_t updates = 0, samples = 0, metrics = 0;
  std::int64_t moved = 0;  // elements, by collectives
};

Work work_of(const trace::ParticipantTrace& rank) {
  Work work;
  for (const auto& event : rank.events) {
    work.updates += event.is<trace::Update>() ? 1 : 0;
    work.metrics += event.is<trace::Metric>() ? 1 : 0;
    if (const auto* call = event.as<trace::Collective>())
      for (const auto size : call->sizes) work.moved += size;
    if (const auto* samples = event.as<trace::Samples>()) work.samples += samples->ids.size();
  }
  return work;
}

void compare_work(const trace::Trace& mended, const trace::Trace& reference,
                  std::vector<std::string>& wrong) {
  for (std::size_t r = 0; r < reference.ranks.size(); ++r) {
    if (r >= mended.ranks.size()) {
      wrong.push_back("rank " + std::to_string(r) + " left no trace");
      continue;
    }
    const auto mine = work_of(mended.ranks[r]), theirs = work_of(reference.ranks[r]);
    const auto at_least = [&](std::size_t made, std::size_t wanted, const std::string& what) {
      if (made < wanted)
        wrong.push_back("rank " + std::to_string(r) + " made " + std::to_string(made) + " " + what +
                        ", and " + std::to_string(wanted) + " are to be made: was work left out?");
    };
    at_least(mine.updates, theirs.updates, "updates");
    at_least(mine.samples, theirs.samples, "draws of a sample");
    // In fewer calls, or more, as it pleases; the little that a log or a check takes may be left out.
    if (10 * mine.moved < 9 * theirs.moved)
      wrong.push_back("rank " + std::to_string(r) + " sends " + std::to_string(mine.moved) +
                      " numbers through collectives, and " + std::to_string(theirs.moved) +
                      " are to be sent: was a collective left out?");
    at_least(mine.metrics, theirs.metrics, "reports of a metric");
  }
}

// Of all ranks, the mean; nothing where there are none or one is no number.
std::optional<double> last_loss(const nlohmann::json& variant) {
  double sum = 0;
  int count = 0;
  for (const auto& rank : variant.at("losses")) {
    if (rank.empty()) continue;
    if (!rank.back().is_number()) return std::nullopt;
    sum += rank.back().get<double>();
    ++count;
  }
  if (count == 0) return std::nullopt;
  return sum / count;
}

void compare_losses(const nlohmann::json& mended, const nlohmann::json& reference,
                    std::vector<std::string>& wrong) {
  constexpr double kTolerance = 0.15;  // relative: another way to mend may draw in another order
  const auto right = last_loss(reference);
  if (!right) return;
  const auto mine = last_loss(mended);
  if (!mine || std::abs(*mine - *right) > kTolerance * std::max(std::abs(*right), 0.1))
    wrong.push_back("the last loss is " + (mine ? figure(*mine) : "no number") +
                    "; a right variant has " + figure(*right));
}

// Where the right variant moves its parameters by the gradient that it recorded, the mended one does, too.
void compare_updates(const trace::Trace& mended, const trace::Trace& reference,
                     std::vector<std::string>& wrong) {
  const auto right = diagnose::sgd_factor(diagnose::Run(reference));
  if (!right) return;
  const auto mine = diagnose::sgd_factor(diagnose::Run(mended));
  if (!mine || std::abs(*mine - *right) > 0.02 * std::abs(*right))
    wrong.push_back("the parameters do not move by the gradient that the optimizer was given" +
                    (mine ? ", but by " + figure(*mine / *right) + " times that" : std::string()));
}

void judge_oracles(const nlohmann::json& variant, std::vector<std::string>& wrong) {
  const auto outcome = variant.at("outcome").get<std::string>();
  if (outcome != "completed")
    wrong.push_back("it did not complete: " + outcome + "\n" + variant.value("reason", ""));
  std::set<std::string> told;  // several pitfalls may have one oracle
  for (const auto& oracle : variant.at("oracles"))
    if (oracle.at("manifested").get<bool>() && outcome == "completed")
      told.insert(oracle.at("metric").get<std::string>() + ": expected " +
                  figure(oracle.at("expected")) +
                  (oracle.at("tolerance") == 0 ? "" : " within " + figure(oracle.at("tolerance"))) +
                  ", observed " + figure(oracle.at("observed")));
  wrong.insert(wrong.end(), told.begin(), told.end());
}

void judge_findings(const std::string& slug, const diagnose::Diagnosis& mended,
                    const diagnose::Diagnosis& reference, std::vector<std::string>& wrong) {
  std::set<std::string> accepted;  // advice that the right variant has, too
  for (const auto& finding : reference.findings) accepted.insert(finding.pitfall);
  for (const auto& finding : mended.findings)
    if (accepted.count(finding.pitfall) == 0)
      wrong.push_back("found: " + finding.pitfall + ", " + ranks_text(finding.ranks) + ": " +
                      finding.evidence);
  const auto state_of = [&](const diagnose::Diagnosis& diagnosis) {
    const auto row = std::find_if(diagnosis.rows.begin(), diagnosis.rows.end(),
                                  [&](const auto& each) { return each.slug == slug; });
    return row == diagnosis.rows.end() ? diagnose::State::not_triggered : row->verdict.state;
  };
  if (state_of(reference) == diagnose::State::clean &&
      state_of(mended) == diagnose::State::not_triggered)
    wrong.push_back("it no longer tells what " + slug +
                    " is seen by: keep the library's sampler, optimizer, loss and take()");
}

}  // namespace

std::vector<std::string> judge(const std::string& slug, const VariantRun& mended,
                               const VariantRun& reference) {
  std::vector<std::string> wrong;
  const auto mine = variant_of(mended), theirs = variant_of(reference);
  if (theirs.at("outcome") == "skipped")
    throw UnavailableError("this exercise cannot be judged here: " + theirs.value("reason", ""));
  if (theirs.at("outcome") != "completed")
    throw Error("the lesson's own correct variant did not complete: " + theirs.value("reason", ""));
  judge_oracles(mine, wrong);
  if (!wrong.empty()) return wrong;
  const auto trace = trace::read_job(mended.traces), right = trace::read_job(reference.traces);
  judge_findings(slug, diagnose::diagnose(trace), diagnose::diagnose(right), wrong);
  compare_work(trace, right, wrong);
  compare_losses(mine, theirs, wrong);
  compare_updates(trace, right, wrong);
  return wrong;
}

}  // namespace lockstep::course
