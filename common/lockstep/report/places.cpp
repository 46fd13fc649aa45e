#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/base/text.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/report/places.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <tuple>

namespace lockstep::report {
namespace {

using diagnose::Finding;
using nlohmann::json;

constexpr std::size_t kMostTold = 10;  // of one finding
// What a program of people's own stays far below.
constexpr std::uint64_t kMost = 1 << 20;  // bytes
constexpr std::size_t kLongestLine = 16'384, kLongestFile = 4'096, kLongestSource = 1'000;

struct Line {
  std::string kind;
  std::int64_t step = 0;
  diagnose::Place place;
};
using Lines = std::vector<Line>;

// ---- reading ----

std::optional<std::string> text_in(const json& object, const char* key, std::size_t longest) {
  const auto found = object.find(key);
  const auto* text = found == object.end() ? nullptr : found->get_ptr<const json::string_t*>();
  if (text == nullptr || text->size() > longest) return std::nullopt;
  return escaped(*text);
}

std::optional<std::int64_t> number_in(const json& object, const char* key, std::int64_t least) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) return std::nullopt;
  const auto number = found->get<std::int64_t>();
  const bool fits = number >= 0 || !found->is_number_unsigned();
  return fits && number >= least ? std::optional(number) : std::nullopt;
}

std::optional<Line> line_of(const std::string& text) {
  if (text.size() > kLongestLine) return std::nullopt;
  const auto object = json::parse(text, nullptr, false);
  if (!object.is_object()) return std::nullopt;
  const auto kind = text_in(object, "kind", kLongestSource);
  const auto file = text_in(object, "file", kLongestFile);
  const auto source = text_in(object, "source", kLongestSource);
  const auto raised =
      object.contains("raised") ? text_in(object, "raised", kLongestSource) : std::string();
  const auto step = number_in(object, "step", -1), number = number_in(object, "line", 1);
  if (!kind || !file || file->empty() || !source || !raised || !step || !number)
    return std::nullopt;
  return Line{*kind,
              *step,
              {.ranks = {}, .file = *file, .line = *number, .source = *source, .raised = *raised}};
}

Lines lines_in(const std::filesystem::path& file, std::vector<std::string>& left_out) {
  std::error_code none;
  if (!std::filesystem::exists(std::filesystem::symlink_status(file, none))) return {};
  Lines lines;
  std::istringstream text;
  try {
    text.str(read_file(file, InputFile::Links::refuse, kMost));
  } catch (const Error& error) {
    left_out.push_back(std::string(error.what()) + "; its lines are left out");
  }
  std::size_t number = 0, damaged = 0, first = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    if (auto read = line_of(line)) {
      lines.push_back(std::move(*read));
    } else if (++damaged == 1) {
      first = number;
    }
  }
  if (damaged > 0)
    left_out.push_back(file.string() + ":" + std::to_string(first) +
                       " is left out: it is no object of kind, step, file, line and source" +
                       (damaged > 1 ? "; so are " + std::to_string(damaged - 1) + " more" : ""));
  return lines;
}

// ---- choosing ----

// Findings count the steps of all attempts, and these lines those of the last one.
std::int64_t steps_before(const trace::ParticipantTrace& rank) {
  const bool is_first = rank.last_attempt == 0 || rank.last_attempt >= rank.events.size();
  return is_first ? 0 : rank.events[rank.last_attempt].step + 1;
}

bool is_where_it_stood(const Line& line) {
  return line.kind == "stall";
}

bool has_stalled(const Finding& finding, const Lines& lines) {
  return finding.sequence >= 0 && std::any_of(lines.begin(), lines.end(), is_where_it_stood);
}

bool is_among(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// Those of one rank. Where several lines have begun what it is about, it may be any of them.
Lines chosen(const Finding& finding, const Lines& lines, std::int64_t before) {
  Lines there;
  const auto choose = [&](const auto& is_meant) {
    std::copy_if(lines.begin(), lines.end(), std::back_inserter(there), is_meant);
  };
  if (finding.sequence >= 0) choose(is_where_it_stood);
  const auto* detector = diagnose::detector_of(finding.pitfall);
  const std::string kind = detector == nullptr         ? ""
                           : detector->line != nullptr ? detector->line
                                                       : diagnose::text_of(detector->equation).line;
  const auto step = std::max<std::int64_t>(finding.step - before, 0);
  if (kind == "raised") {
    choose([&](const Line& line) { return line.kind == kind; });
  } else if (there.empty() && !kind.empty()) {
    // One that came for the first time at that step is the likeliest.
    choose([&](const Line& line) { return line.kind == kind && line.step == step; });
    // A line from before the training, as that of init_process_group, is none of a later step's.
    const bool is_later = kind == "collective" && step > 0;
    choose([&](const Line& line) {
      return line.kind == kind && line.step < step && !(is_later && line.step < 0);
    });
  }
  return there;
}

}  // namespace

std::vector<std::string> add_places(const std::filesystem::path& folder, const trace::Trace& trace,
                                    diagnose::Diagnosis& diagnosis) {
  std::vector<std::string> left_out;
  std::map<int, Lines> lines;
  std::map<int, std::int64_t> before;
  for (const auto& rank : trace.ranks) {
    const auto number = rank.participant.rank;
    lines[number] = lines_in(folder / ("places_" + std::to_string(number) + ".jsonl"), left_out);
    before[number] = steps_before(rank);
  }
  for (auto& finding : diagnosis.findings) {
    std::map<std::tuple<std::string, std::int64_t, std::string>, std::size_t> known;
    auto ranks_told = finding.ranks;
    // In a hang, where the others wait is told, too.
    for (const auto& [rank, of_rank] : lines)
      if (has_stalled(finding, of_rank) && !is_among(finding.ranks, rank))
        ranks_told.push_back(rank);
    for (const int rank : ranks_told)
      for (const auto& line : chosen(finding, lines[rank], before[rank])) {
        const auto [at, is_new] =
            known.try_emplace({line.place.file, line.place.line, line.place.raised}, known.size());
        if (at->second >= kMostTold) continue;
        if (is_new) finding.places.push_back(line.place);
        auto& ranks = finding.places[at->second].ranks;
        if (ranks.empty() || ranks.back() != rank) ranks.push_back(rank);
      }
  }
  return left_out;
}

}  // namespace lockstep::report
