#include <lockstep/base/json_text.h>
#include <lockstep/report/json.h>
#include <lockstep/report/lesson_report.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

namespace lockstep::report {
namespace {

using nlohmann::json;

json to_json(const OracleResult& oracle) {
  return {{"pitfall", oracle.pitfall},     {"metric", oracle.metric},
          {"expected", oracle.expected},   {"observed", oracle.observed},
          {"tolerance", oracle.tolerance}, {"manifested", oracle.manifested}};
}

json variant_json(const Variant& variant) {
  json oracles = json::array();
  for (const auto& oracle : variant.oracles) oracles.push_back(to_json(oracle));
  json result = {{"name", variant.name},
                 {"part", variant.part},
                 {"kind", to_string(variant.kind)},
                 {"what", variant.what},
                 {"world_size", variant.world_size},
                 {"participants", variant.participants},
                 {"outcome", to_string(variant.ending)},
                 {"reason", variant.reason},
                 {"stall", json::parse(stall_json(variant.stall))},
                 {"oracles", oracles},
                 {"findings", json::parse(findings_json(variant.findings))},
                 {"losses", variant.losses},
                 {"accuracy", variant.accuracy},
                 {"timings", {{"seconds", variant.seconds}}},
                 {"verdict", variant.verdict}};
  if (!variant.reference_losses.empty()) result["reference_losses"] = variant.reference_losses;
  if (variant.pictures) result["pictures"] = json::parse(pictures_json(*variant.pictures));
  return result;
}

json environment_json(const Environment& environment) {
  return {{"git_revision", environment.git_revision},
          {"torch", environment.torch_version},
          {"compiler", environment.compiler},
          {"backend", environment.backend},
          {"world_size", environment.world_size},
          {"seed", environment.seed},
          {"cpu", environment.cpu},
          {"processors", environment.processors},
          {"gpus", environment.gpus},
          {"data", environment.data}};
}

// What holds no list or object stays on one line: thousands of numbers and calls would have one each.
void print(const json& value, const std::string& line, std::string& text) {
  const auto holds_more = [](const json& item) { return item.is_structured() && !item.empty(); };
  if (!value.is_structured() || std::none_of(value.begin(), value.end(), holds_more)) {
    text += json_text(value);
    return;
  }
  const bool named = value.is_object();
  const char* separator = named ? "{" : "[";
  for (const auto& [key, item] : value.items()) {
    text += separator + line + "  ";
    if (named) text += json_text(json(key)) + ": ";
    print(item, line + "  ", text);
    separator = ",";
  }
  text += line + (named ? "}" : "]");
}

// The names found: those of violations, or of advice where there is no violation.
std::set<std::string> named(const Variant& variant) {
  std::set<std::string> violations, advice;
  for (const auto& finding : variant.findings)
    (finding.severity == diagnose::Severity::violation ? violations : advice)
        .insert(finding.pitfall);
  return violations.empty() ? advice : violations;
}

bool has_violation(const Variant& variant) {
  return std::any_of(variant.findings.begin(), variant.findings.end(), [](const auto& finding) {
    return finding.severity == diagnose::Severity::violation;
  });
}

bool manifested(const Variant& variant) {
  return std::any_of(variant.oracles.begin(), variant.oracles.end(),
                     [](const auto& oracle) { return oracle.manifested; });
}

}  // namespace

std::string to_string(Ending ending) {
  switch (ending) {
    case Ending::completed:
      return "completed";
    case Ending::crash:
      return "crash";
    case Ending::hang:
      return "hang";
    case Ending::skipped:
      return "skipped";
  }
  return "unknown";
}

std::string to_string(Kind kind) {
  switch (kind) {
    case Kind::correct:
      return "correct";
    case Kind::broken:
      return "broken";
    case Kind::near_miss:
      return "near-miss";
  }
  return "unknown";
}

std::string judge(const Variant& variant) {
  if (variant.ending == Ending::skipped) return "skipped";
  if (variant.kind == Kind::broken) {
    if (variant.ending != variant.meant) return "ended-otherwise";
    if (!manifested(variant)) return "not-manifested";
    const auto names = named(variant);
    if (names.empty()) return "not-named";
    return names == std::set<std::string>{variant.name} ? "as-expected" : "misnamed";
  }
  if (variant.ending != Ending::completed) return "not-completed";
  if (has_violation(variant)) return "false-alarm";
  return manifested(variant) ? "manifested" : "as-expected";
}

bool LessonReport::as_expected() const {
  return std::all_of(variants.begin(), variants.end(), [](const auto& variant) {
    return variant.verdict == "as-expected" || variant.verdict == "skipped";
  });
}

std::string to_json(const LessonReport& comparison) {
  json variants = json::array();
  for (const auto& variant : comparison.variants) variants.push_back(variant_json(variant));
  const json report = {{"schema_version", kSchemaVersion},
                       {"lesson", comparison.lesson},
                       {"title", comparison.title},
                       {"environment", environment_json(comparison.environment)},
                       {"as_expected", comparison.as_expected()},
                       {"variants", variants}};
  std::string text;
  print(report, "\n", text);
  return text + "\n";
}

}  // namespace lockstep::report
