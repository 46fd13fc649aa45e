#include <lockstep/base/file.h>
#include <lockstep/base/text.h>
#include <lockstep/course/difference.h>
#include <lockstep/course/pitfall_source.h>
#include <lockstep/course/prose.h>
#include <lockstep/course/run_sections.h>
#include <lockstep/report/page.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace lockstep::course {
namespace {

std::string five_digits(const nlohmann::json& value) {
  if (!value.is_number()) return "none";
  char text[32];
  std::snprintf(text, sizeof text, "%.5g", value.get<double>());
  return text;
}

nlohmann::json variants_of(const std::filesystem::path& report) {
  return nlohmann::json::parse(read_file(report)).at("variants");
}

// A cell of its own width, or wider.
std::string cell(const std::string& text, std::size_t width) {
  return text + std::string(text.size() < width ? width - text.size() : 1, ' ');
}

// Losses and accuracies: a line for each rank, a column for each epoch (the last ones, where there are many).
void say_ranks(const nlohmann::json& variant) {
  constexpr std::size_t kMost = 4;
  const auto& losses = variant.at("losses");
  const auto& accuracy = variant.at("accuracy");
  if (losses.empty()) return;
  const std::string who = variant.value("participants", "ranks") == "devices" ? "device" : "rank";
  std::cout << "    " << cell(who, 8) << cell("loss by epoch", 10 * kMost) << "accuracy\n";
  for (std::size_t rank = 0; rank < losses.size(); ++rank) {
    std::string by_epoch;
    const auto& of_rank = losses[rank];
    for (std::size_t e = of_rank.size() - std::min(of_rank.size(), kMost); e < of_rank.size(); ++e)
      by_epoch += cell(five_digits(of_rank[e]), 10);
    const bool has_accuracy = rank < accuracy.size() && !accuracy[rank].empty();
    std::cout << "    " << cell(std::to_string(rank), 8) << cell(by_epoch, 10 * kMost)
              << (has_accuracy ? five_digits(accuracy[rank].back()) : "") << "\n";
  }
}

void say_variant(const nlohmann::json& variant) {
  const auto what = variant.at("what").get<std::string>();
  const auto name = variant.at("name").get<std::string>();
  const auto kind = variant.at("kind").get<std::string>();
  std::cout << wrapped(
      name + (name == kind ? "" : " (" + kind + ")") + (what.empty() ? "" : ": " + what), "  ");
  say_ranks(variant);
  const auto outcome = variant.at("outcome").get<std::string>();
  if (outcome != "completed") std::cout << wrapped("It ended otherwise: " + outcome, "    ");
  std::set<std::string> said;  // several pitfalls may have one oracle
  for (const auto& oracle : variant.at("oracles")) {
    const auto tolerance = five_digits(oracle.at("tolerance"));
    auto line = "expected " + five_digits(oracle.at("expected")) +
                (tolerance == "0" ? "" : " within " + tolerance) + ", observed " +
                five_digits(oracle.at("observed")) + ": " + oracle.at("metric").get<std::string>();
    if (said.insert(line).second) std::cout << wrapped(line, "    ");
  }
  if (variant.at("findings").empty()) std::cout << "    found: nothing\n";
  for (const auto& finding : variant.at("findings"))
    std::cout << wrapped("found: " + finding.at("pitfall").get<std::string>() + ", " +
                             ranks_text(finding.at("ranks").get<std::vector<int>>()) + ": " +
                             finding.at("evidence").get<std::string>(),
                         "    ");
}

// A reason that several variants have is given once.
void say_skipped(const std::vector<nlohmann::json>& variants) {
  std::vector<std::string> reasons;
  std::map<std::string, std::vector<std::string>> names;
  for (const auto& variant : variants) {
    const auto reason = variant.value("reason", "");
    if (names.count(reason) == 0) reasons.push_back(reason);
    names[reason].push_back(variant.at("name").get<std::string>());
  }
  for (const auto& reason : reasons)
    std::cout << wrapped("skipped: " + list(names.at(reason)) + ": " + reason, "  ");
}

void say_sections(const LessonEntry& lesson, const std::vector<std::string>& names) {
  const auto page = read_file(lesson.folder / "lesson.md");
  for (const auto& name : names) {
    say_heading(name);
    say_section(report::section_of(page, name), lesson.folder);
  }
}

}  // namespace

void say_before(const LessonEntry& lesson, const std::string& slug) {
  say_sections(lesson, slug.empty() ? std::vector<std::string>{"What you will be able to do",
                                                               "The idea", "A prediction to make"}
                                    : std::vector<std::string>{"The idea"});
  say_heading("The runs");
  std::cout << std::flush;
}

void say_after(const LessonEntry& lesson, const std::vector<std::filesystem::path>& reports,
               const std::string& slug) {
  const auto pitfalls = find_pitfalls(source_folder());
  say_heading("By rank, expected against observed, and the diagnosis");
  std::vector<nlohmann::json> skipped;
  for (const auto& report : reports)
    for (const auto& variant : variants_of(report))
      if (variant.at("outcome") == "skipped")
        skipped.push_back(variant);
      else
        say_variant(variant);
  say_skipped(skipped);
  if (slug.empty()) {
    say_sections(lesson, {"The answer", "The pitfalls"});
    say_heading("The fix");
    for (const auto& pitfall : pitfalls)
      if (pitfall.lesson == lesson.name)
        std::cout << "  ./lockstep explain " << pitfall.slug << " --diff\n";
    say_sections(lesson, {"Exercise"});
  } else {
    const auto own = report::read_page(source_folder(), lesson.name, slug);
    const auto folder = lesson.folder / "pitfalls";
    say_heading("Why");
    say_section(own.section("Why"), folder);
    say_heading("The fix");
    say_section(own.section("Fix"), folder);
    std::cout << "\n" << readable_patch_of(slug, code_of(find_pitfall(pitfalls, slug)));
    say_heading("Exercise");
    std::cout << "  ./lockstep exercise start " << slug << "\n";
  }
}

}  // namespace lockstep::course
