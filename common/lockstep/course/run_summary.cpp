#include <lockstep/base/file.h>
#include <lockstep/base/text.h>
#include <lockstep/course/prose.h>
#include <lockstep/course/run_summary.h>

#include <cmath>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace lockstep::course {
namespace {

struct Verdicts {
  std::int64_t expected = 0;
  std::vector<std::string> other;  // "LESSON VARIANT (verdict)"
  std::map<std::pair<std::string, std::string>, std::int64_t> skipped;  // by lesson and reason

  std::int64_t number_skipped() const {
    std::int64_t number = 0;
    for (const auto& [which, count] : skipped) number += count;
    return number;
  }
};

void add(Verdicts& verdicts, const std::string& lesson, const std::filesystem::path& report) {
  const auto json = nlohmann::json::parse(read_file(report));
  for (const auto& variant : json.at("variants")) {
    const auto verdict = variant.at("verdict").get<std::string>();
    if (verdict == "as-expected")
      ++verdicts.expected;
    else if (verdict == "skipped")
      ++verdicts.skipped[{lesson, variant.value("reason", "")}];
    else
      verdicts.other.push_back(lesson + " " + variant.at("name").get<std::string>() + " (" +
                               verdict + ")");
  }
}

std::string duration(double seconds) {
  const auto whole = std::llround(seconds);
  const auto minutes = whole / 60;
  return (minutes > 0 ? std::to_string(minutes) + " min " : "") + std::to_string(whole % 60) + " s";
}

void say(const std::string& line) {
  std::cout << filled("  " + line + "\n", 2);
}

}  // namespace

std::string verdict_on(const std::filesystem::path& report) {
  Verdicts verdicts;
  add(verdicts, "", report);
  if (!verdicts.other.empty()) return "A variant did not end as expected: see above.";
  if (verdicts.skipped.empty()) return "Every variant ended as expected.";
  const auto skipped = verdicts.number_skipped();
  return plural(verdicts.expected, "variant") + " ended as expected, " + std::to_string(skipped) +
         (skipped == 1 ? " was" : " were") + " skipped.";
}

void say_summary(const RunSummary& summary, const std::filesystem::path& standard) {
  Verdicts verdicts;
  for (const auto& lesson : summary.ran)
    add(verdicts, lesson, summary.reports / (lesson + ".json"));
  const auto other = static_cast<std::int64_t>(verdicts.other.size());
  const auto skipped = verdicts.number_skipped();
  say_heading("Summary");
  const auto lessons = summary.ran.size() + summary.skipped.size() + summary.did_not_run.size();
  say(plural(static_cast<std::int64_t>(lessons), "lesson") + ", " +
      plural(verdicts.expected + other + skipped, "variant") + ": " +
      std::to_string(verdicts.expected) + " as expected, " +
      (other > 0 ? std::to_string(other) + " not as expected, " : "") + std::to_string(skipped) +
      " skipped; " + duration(summary.seconds));
  if (other > 0) say("not as expected: " + list(verdicts.other));
  for (const auto& [which, count] : verdicts.skipped)
    say("skipped: " + plural(count, "variant") + " of " + which.first + ": " + which.second);
  if (!summary.skipped.empty())
    say("skipped, no variant ran: " + list(summary.skipped) + ": see above");
  if (!summary.did_not_run.empty()) say("did not run: " + list(summary.did_not_run));
  const auto folder = summary.reports.lexically_normal();
  say("reports: " + folder.string() + "; one page of them: ./lockstep report" +
      (folder == standard.lexically_normal() ? "" : " --reports " + folder.string()));
}

}  // namespace lockstep::course
