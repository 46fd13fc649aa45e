#include <lockstep/diagnose/differences.h>
#include <lockstep/diagnose/gradients.h>

#include <algorithm>
#include <numeric>

namespace lockstep::diagnose {

std::string some_of(std::vector<std::string> parts, std::size_t most) {
  if (parts.size() > most + 1) {
    const auto more = parts.size() - most;
    parts.resize(most);
    parts.push_back(std::to_string(more) + " more");
  }
  return list(parts);
}

std::vector<std::pair<std::string, std::vector<int>>> ranks_by_text(
    const std::vector<int>& ranks, const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, std::vector<int>>> in_order;
  std::map<std::string, std::size_t> places;
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const auto [place, is_new] = places.try_emplace(texts[r], in_order.size());
    if (is_new) in_order.push_back({texts[r], {}});
    in_order[place->second].second.push_back(ranks[r]);
  }
  return in_order;
}

std::optional<Finding> differs(const Run& run, const std::string& what,
                               const std::vector<std::string>& texts, std::int64_t step) {
  const auto odd = odd_ones_out(run.numbers, texts);
  if (odd.empty()) return std::nullopt;
  std::vector<std::string> who;
  for (const auto& [text, ranks] : ranks_by_text(run.numbers, texts))
    who.push_back(text + " on " + lockstep::ranks_text(ranks));
  return Finding{.ranks = odd, .step = step, .evidence = what + " is " + some_of(who)};
}

std::vector<std::size_t> groups_by_gap(const std::vector<double>& values, double apart) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return values[a] < values[b]; });
  std::vector<std::size_t> groups(values.size());
  for (std::size_t i = 1; i < order.size(); ++i)
    groups[order[i]] =
        groups[order[i - 1]] + (values[order[i]] - values[order[i - 1]] > apart ? 1 : 0);
  return groups;
}

Verdict among_replicas(const Run& run, std::vector<Finding> (*find)(const Run&)) {
  if (!train_one_model(run)) return not_triggered(kNotOneModel);
  Verdict verdict = clean();
  verdict.findings = find(run);
  if (!verdict.findings.empty()) verdict.state = State::found;
  return verdict;
}

}  // namespace lockstep::diagnose
