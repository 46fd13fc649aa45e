#include <lockstep/base/error.h>
#include <lockstep/report/facts.h>

#include <algorithm>
#include <numeric>
#include <regex>

namespace lockstep::report {
namespace {

// The part of "VALUE, or W: VALUE, W: VALUE, else: VALUE" that is for this W; "" where none is.
std::string value_for(const std::string& fact, int world_size) {
  static const std::regex entry(R"((\d+|else): (\[[^\]]*\]|[^,\[]+))");
  if (fact.find(": ") == std::string::npos) return fact;
  std::string here, otherwise;
  std::size_t read = 0;
  for (std::sregex_iterator at(fact.begin(), fact.end(), entry), end; at != end; ++at) {
    if ((*at)[1] == std::to_string(world_size)) here = (*at)[2];
    if ((*at)[1] == "else") otherwise = (*at)[2];
    read += static_cast<std::size_t>(at->length()) + (read == 0 ? 0 : 2);
  }
  if (read != fact.size()) throw std::invalid_argument(fact);
  return here.empty() ? otherwise : here;
}

double number_in(const std::string& text) {
  std::size_t read = 0;
  const double number = std::stod(text, &read);
  if (read != text.size()) throw std::invalid_argument(text);
  return number;
}

std::string one_of(const std::vector<std::string>& words, const std::string& value) {
  if (std::find(words.begin(), words.end(), value) == words.end())
    throw std::invalid_argument(value);
  return value;
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

std::optional<std::int64_t> step_in(const std::string& text) {
  if (text.empty()) return std::nullopt;
  return static_cast<std::int64_t>(number_in(text));
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
      if (name == "ranks")
        facts.ranks = ranks_in(value_for(value, world_size), world_size);
      else if (name == "step")
        facts.step = step_in(value_for(value, world_size));
      else if (name == "figure")
        facts.figure = figure_in(value, world_size);
      else if (name == "ending")
        facts.ending = one_of({"crash", "hang"}, value);
      else if (name == "on")
        facts.on = static_cast<int>(number_in(value));
      else if (name == "severity")
        facts.advice = one_of({"advice"}, value) == "advice";
      else if (name == "gpu")
        facts.needs_gpu = one_of({"needed"}, value) == "needed";
      else if (name == "also")
        facts.also = words_of(value);
      else if (name == "unrelated")
        facts.unrelated = words_of(value);
      else
        one_of({"level", "needs", "breaks", "calls", "near"}, name);
    } catch (const std::logic_error&) {  // of std::stod too
      throw Error("the page of \"" + page.title + "\": its " + name + " cannot be read: " + value);
    }
  return facts;
}

}  // namespace lockstep::report
