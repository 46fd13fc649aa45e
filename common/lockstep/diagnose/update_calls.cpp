#include <lockstep/diagnose/backwards.h>
#include <lockstep/diagnose/cuts.h>
#include <lockstep/diagnose/pairing.h>
#include <lockstep/diagnose/update_calls.h>

#include <algorithm>
#include <limits>

namespace lockstep::diagnose {
namespace {

constexpr auto kAll = std::numeric_limits<std::int64_t>::max();

// What a rank called in the group within one update, in order.
std::vector<Signature> calls_within(const trace::ParticipantTrace& rank, const std::string& group,
                                    std::int64_t step, std::int64_t before_sequence) {
  std::vector<Signature> made;
  for (const auto& at : rank.latest<trace::Collective>())
    if (at.step == step && at.event->group == group && !is_point_to_point(*at.event) &&
        at.event->sequence < before_sequence)
      made.push_back(signature(*at.event));
  return made;
}

// As far as all ranks have recorded it, each drew as many batches in each pass; one that is in a pass may have
// more to come. Where some drew fewer, they may have shadowed the others' updates (join).
bool drew_equally_many_batches(const Run& run) {
  std::vector<std::vector<PassStretch>> of_ranks;
  for (const auto* rank : run.ranks)
    of_ranks.push_back(cut_at_passes(*rank, "train", rank->last_attempt));
  std::size_t passes = of_ranks.front().size();
  for (const auto& rank : of_ranks) passes = std::min(passes, rank.size());
  if (passes == 0) return false;
  for (std::size_t pass = 0; pass < passes; ++pass) {
    std::size_t most = 0;
    std::size_t fewest = SIZE_MAX;  // of passes that are over
    for (const auto& rank : of_ranks) {
      const auto drawn = rank[pass].batches().size();
      most = std::max(most, drawn);
      if (rank[pass].ended || pass + 1 < rank.size()) fewest = std::min(fewest, drawn);
    }
    if (fewest < most) return false;
  }
  return true;
}

}  // namespace

std::optional<MovedCalls> moved_within_the_update(const Run& run, const std::vector<Call>& place) {
  const auto& first = place.front();
  const auto& group = first.collective->group;
  const auto pattern = calls_within(*run.ranks.front(), group, first.step - 1, kAll);
  for (const auto* rank : run.ranks)
    if (calls_within(*rank, group, first.step - 1, kAll) != pattern) return std::nullopt;
  const auto at =
      calls_within(*run.ranks.front(), group, first.step, first.collective->sequence).size();
  if (at >= pattern.size()) return std::nullopt;
  std::vector<int> moved;
  bool left_out = true;
  for (const auto& call : place) {
    const auto mine = signature(*call.collective);
    if (call.step != first.step) return std::nullopt;
    if (mine == pattern[at]) continue;
    if (std::find(pattern.begin(), pattern.end(), mine) == pattern.end()) return std::nullopt;
    moved.push_back(call.rank);
    left_out = left_out && at + 1 < pattern.size() && mine == pattern[at + 1];
  }
  if (moved.empty() || moved.size() == place.size()) return std::nullopt;
  return MovedCalls{moved, left_out};
}

std::vector<int> own_before_the_engines(const Run& run, const std::vector<Call>& place) {
  const auto& first = place.front();
  if (first.collective->op != "allreduce") return {};
  std::set<std::vector<Signature>> patterns;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    patterns.insert(calls_within(*run.ranks[r], first.collective->group, first.step - 1, kAll));
    const auto& spans = update_spans(run)[r];
    const auto before = std::find_if(spans.begin(), spans.end(),
                                     [&](const auto& span) { return span.step == first.step - 1; });
    if (before == spans.end() || before->engine_elements == 0 ||
        before->reduced != before->engine_elements)
      return {};
  }
  if (patterns.size() != 1) return {};
  const auto& engine = *patterns.begin();
  std::vector<int> own;
  for (const auto& call : place)
    if (std::find(engine.begin(), engine.end(), signature(*call.collective)) == engine.end())
      own.push_back(call.rank);
  return own.size() == place.size() ? std::vector<int>() : own;
}

std::optional<LeftOut> left_out_in_an_update(const Run& run) {
  if (update_skipped(run)) return std::nullopt;
  const auto* place = first_out_of_step(unambiguous_calls(run));
  if (!place || place->size() != run.ranks.size() || !drew_equally_many_batches(run))
    return std::nullopt;
  const auto& group = place->front().collective->group;
  std::int64_t step = place->front().step;
  for (const auto& call : *place) step = std::min(step, call.step);
  const auto before = calls_within(*run.ranks.front(), group, step - 1, kAll);
  if (before.empty()) return std::nullopt;  // a group that is not used in every update
  std::vector<std::size_t> made;
  for (const auto* rank : run.ranks) {
    if (rank->latest<trace::Engine>().empty() || !rank->latest<trace::ScaledStep>().empty() ||
        !rank->latest<trace::SyncGradients>().empty())
      return std::nullopt;
    const auto updates = rank->latest<trace::Update>();
    const auto is_here = [&](const auto& at) { return at.step == step; };
    if (std::none_of(updates.begin(), updates.end(), is_here)) return std::nullopt;
    if (step < 1 || calls_within(*rank, group, step - 1, kAll) != before) return std::nullopt;
    made.push_back(calls_within(*rank, group, step, kAll).size());
  }
  const auto odd = odd_ones_out(run.numbers, made);
  if (odd.empty()) return std::nullopt;
  return LeftOut{odd, place};
}

}  // namespace lockstep::diagnose
