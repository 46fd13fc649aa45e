#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/matrix/beside.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace lockstep::matrix {
namespace {

using nlohmann::json;

constexpr int kBesideVersion = 1;
constexpr const char* kOurs = "lockstep";  // its column of our own detectors

Cell cell_of(const std::string& name) {
  for (int cell = 0; cell <= static_cast<int>(Cell::skipped); ++cell)
    if (to_string(static_cast<Cell>(cell)) == name) return static_cast<Cell>(cell);
  throw Error("\"" + name + "\" is no cell of a matrix");
}

Beside parse_beside(const json& text) {
  if (!text.is_object() || !text.contains("schema_version"))
    throw Error("it has no schema_version");
  if (const int version = text.at("schema_version"); version != kBesideVersion)
    throw Error("schema_version is " + std::to_string(version) + ", and must be " +
                std::to_string(kBesideVersion));
  Beside beside;
  beside.source = "PyTorch " + text.at("torch").get<std::string>() + ", " +
                  text.at("backend").get<std::string>() + ", " +
                  std::to_string(text.at("world_size").get<int>()) + " ranks, " +
                  text.at("date").get<std::string>();
  for (const std::string name : text.at("checkers"))
    if (name != kOurs) beside.means.push_back(name);
  if (beside.means.empty()) throw Error("it has no means but our own detectors");
  for (const auto& one : text.at("cases")) {
    const std::string slug = one.at("slug");
    if (beside.pitfalls.count(slug) > 0) throw Error("two cases are called " + slug);
    for (const auto& means : beside.means) {
      const auto& variants = one.at("cells").at(means);
      if (!variants.is_object())
        throw Error(slug + ", " + means + ": not an object of two variants");
      beside.pitfalls[slug][means] = {cell_of(variants.at("broken").at("cell")),
                                      cell_of(variants.at("correct").at("cell"))};
    }
  }
  if (beside.pitfalls.empty()) throw Error("it has no case");
  return beside;
}

std::optional<Said> said_of(Cell cell) {
  switch (cell) {
    case Cell::exact:
    case Cell::slug_only:
      return Said::named;
    case Cell::family_only:
      return Said::noticed;
    case Cell::wrong_name:
      return Said::misnamed;
    case Cell::error:
      return Said::error;
    case Cell::not_applicable:
    case Cell::skipped:
      return std::nullopt;
    default:
      return Said::silent;
  }
}

void count_pitfall(Comparison::Total& total, const std::optional<Said>& said) {
  if (!said) return;
  total.named.count(said == Said::named);
  total.noticed.count(said == Said::named || said == Said::noticed);
}

}  // namespace

Beside read_beside(const std::filesystem::path& file) {
  try {
    return parse_beside(json::parse(read_file(file)));
  } catch (const std::exception& error) {
    throw Error(file.string() + ": " + error.what() +
                ". evaluation/pytorch_means/side_by_side.py --out FILE makes such a file");
  }
}

std::string to_string(Said said) {
  switch (said) {
    case Said::named:
      return "named";
    case Said::noticed:
      return "noticed";
    case Said::misnamed:
      return "misnamed";
    case Said::silent:
      return "silent";
    case Said::error:
      return "error";
  }
  return "error";
}

Comparison compare(const std::vector<Scored>& runs, const Families& families,
                   const Beside& beside) {
  std::map<std::string, Said> ours;
  for (const auto& [truth, answer] : runs) {
    if (truth.pitfall.empty()) continue;
    if (const auto said = said_of(judge(truth, answer, families)))
      ours[truth.pitfall] = std::max(*said, ours.emplace(truth.pitfall, *said).first->second);
  }
  Comparison compared;
  compared.columns = {"ours"};
  compared.columns.insert(compared.columns.end(), beside.means.begin(), beside.means.end());
  compared.totals.resize(compared.columns.size());
  compared.totals.front().false_alarms = score(runs, families).false_alarms;
  for (const auto& [slug, cells] : beside.pitfalls) {
    const auto found = ours.find(slug);
    const bool asked = found != ours.end();
    auto& row = compared.rows[slug];
    row.push_back(asked ? std::optional(found->second) : std::nullopt);
    for (const auto& means : beside.means) row.push_back(said_of(cells.at(means).broken));
    for (std::size_t column = 0; asked && column < row.size(); ++column) {
      auto& total = compared.totals[column];
      count_pitfall(total, row[column]);
      if (column == 0) continue;
      const auto correct = cells.at(compared.columns[column]).correct;
      if (correct == Cell::clean || correct == Cell::false_alarm)
        total.false_alarms.count(correct == Cell::false_alarm);
    }
  }
  return compared;
}

}  // namespace lockstep::matrix
