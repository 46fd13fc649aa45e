#include <lockstep/diagnose/evaluated.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace lockstep::diagnose {
namespace {

// Of a large forward some rows are told: those whose hashes are multiples of this.
std::int64_t one_of(const trace::Ids& hashes) {
  constexpr std::size_t kEnough = 16;  // that are no such multiples by chance
  std::int64_t bits = 0;
  for (const auto hash : hashes) bits |= hash;
  return hashes.size() < kEnough || bits == 0 ? 1 : bits & -bits;
}

// By sample, the first step that trained on it.
std::optional<std::unordered_map<std::int64_t, std::int64_t>> trained_on(const Run& run) {
  std::unordered_map<std::int64_t, std::int64_t> found;
  for (const auto* rank : run.ranks) {
    std::size_t told = 0;
    for (const auto& at : rank->latest<trace::Rows>()) {
      std::unordered_set<std::int64_t> here;
      for (const auto hash : at.event->hashes) {
        if (!here.insert(hash).second) return {};
        auto& first = found.try_emplace(hash, at.step).first->second;
        first = std::min(first, at.step);
      }
      told += here.size();
    }
    if (told >= trace::Rows::kMost) return {};
  }
  return found;
}

}  // namespace

std::optional<Evaluated> evaluated(const Run& run) {
  if (run.kinds.count(trace::EvaluationRows::kName) == 0) return {};
  std::int64_t every = 1;
  for (const auto* rank : run.ranks) {
    for (const auto& at : rank->latest<trace::Rows>())
      every = std::max(every, one_of(at.event->hashes));
    for (const auto& at : rank->latest<trace::EvaluationRows>())
      every = std::max(every, one_of(at.event->hashes));
  }
  const auto trained = trained_on(run);
  if (!trained || trained->empty()) return {};
  std::unordered_map<std::int64_t, bool> samples;  // whether one was trained on before
  Evaluated found;
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->latest<trace::EvaluationRows>())
      for (const auto hash : at.event->hashes) {
        if (hash % every != 0) continue;
        const auto known = trained->find(hash);
        const bool before = known != trained->end() && known->second < at.step;
        samples[hash] |= before;
        if (before && (found.step < 0 || at.step < found.step)) found.step = at.step;
      }
  found.samples = static_cast<std::int64_t>(samples.size());
  for (const auto& [hash, before] : samples) {
    found.trained += before ? 1 : 0;
    found.never += trained->count(hash) == 0 ? 1 : 0;
  }
  return found;
}

}  // namespace lockstep::diagnose
