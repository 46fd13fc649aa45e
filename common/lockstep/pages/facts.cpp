#include <lockstep/base/error.h>
#include <lockstep/pages/facts.h>

#include <numeric>
#include <regex>

namespace lockstep::pages {
namespace {

// The part of "VALUE, or W: VALUE, W: VALUE, else: VALUE" that is for this W; "" where none is.
std::string value_for(const std::string& fact, int world_size) {
  static const std::regex entry(R"((\d+|else): (\[[^\]]*\]|[^,\[]+))");
  if (fact.find(": ") == std::string::npos) return fact;
  std::string otherwise;
  for (std::sregex_iterator at(fact.begin(), fact.end(), entry), end; at != end; ++at) {
    if ((*at)[1] == std::to_string(world_size)) return (*at)[2];
    if ((*at)[1] == "else") otherwise = (*at)[2];
  }
  return otherwise;
}

double number_in(const std::string& text) {
  std::size_t read = 0;
  const double number = std::stod(text, &read);
  if (read != text.size()) throw std::invalid_argument(text);
  return number;
}

std::vector<std::string> words_of(const std::string& list) {
  static const std::regex comma(", *");
  if (list.empty()) return {};
  return {std::sregex_token_iterator(list.begin(), list.end(), comma, -1), {}};
}

std::vector<int> ranks_in(const std::string& text, int world_size) {
  std::vector<int> ranks;
  if (text == "all") {
    ranks.resize(static_cast<std::size_t>(world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
  } else if (text == "first") {
    ranks = {0};
  } else if (text == "last") {
    ranks = {world_size - 1};
  } else if (!text.empty()) {
    if (text.front() != '[' || text.back() != ']') throw std::invalid_argument(text);
    for (const auto& rank : words_of(text.substr(1, text.size() - 2)))
      ranks.push_back(static_cast<int>(number_in(rank)));
  }
  return ranks;
}

std::optional<Figure> figure_in(std::string fact, int world_size) {
  Figure figure;
  const std::string bound = "at least ", close = " within ";
  if (fact.rfind(bound, 0) == 0) {
    figure.at_least = true;
    fact.erase(0, bound.size());
  }
  if (const auto at = fact.find(close); at != std::string::npos) {
    figure.within = number_in(fact.substr(at + close.size()));
    fact.erase(at);
  }
  const auto value = value_for(fact, world_size);
  if (value.empty()) return std::nullopt;
  figure.value = value == "W" ? world_size : value == "1/W" ? 1.0 / world_size : number_in(value);
  return figure;
}

}  // namespace

Facts facts_of(const Page& page, int world_size) {
  Facts facts;
  for (const auto& [name, value] : page.facts) try {
      const auto here = value_for(value, world_size);
      if (name == "ranks") facts.ranks = ranks_in(here, world_size);
      if (name == "step" && !here.empty()) facts.step = static_cast<std::int64_t>(number_in(here));
      if (name == "figure") facts.figure = figure_in(value, world_size);
      if (name == "ending") facts.ending = value;
      if (name == "from") facts.from = static_cast<int>(number_in(value));
      if (name == "severity") facts.advice = value == "advice";
      if (name == "gpu") facts.needs_gpu = value == "needed";
      if (name == "also") facts.also = words_of(value);
    } catch (const std::logic_error&) {  // of std::stod
      throw Error("the page of \"" + page.title + "\": its " + name + " cannot be read: " + value);
    }
  return facts;
}

}  // namespace lockstep::pages
