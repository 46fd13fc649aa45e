#include "../forms.h"

namespace lockstep::testing {

namespace {

// On three ranks, so that most of them are right.
constexpr int kRanks = 3;

std::vector<int> first_rank(int) {
  return {0};
}
std::vector<int> last_rank(int world_size) {
  return {world_size - 1};
}
std::vector<int> odd_ranks(int world_size) {
  std::vector<int> ranks;
  for (int rank = 1; rank < world_size; rank += 2) ranks.push_back(rank);
  return ranks;
}
std::vector<int> all_ranks(int world_size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size; ++rank) ranks.push_back(rank);
  return ranks;
}
// Of two ranks that differ neither is the odd one.
std::vector<int> last_or_both(int world_size) {
  return world_size == 2 ? all_ranks(2) : last_rank(world_size);
}

using Culprits = std::vector<int> (*)(int);

// No rank comes to the end: those that are waited for fail, or fail in waiting for the others.
FormCase hangs(std::string form, Culprits culprits) {
  auto made = exactly(std::move(form), always(0), kRanks, 0, "crash");
  made.ranks = culprits;
  return made;
}

// Every rank's first of two rounds is right.
FormCase half_right(std::string form, std::string ending, Culprits culprits) {
  auto made = exactly(
      std::move(form), [](int world_size) { return double(world_size); }, kRanks, 0,
      std::move(ending));
  made.ranks = culprits;
  return made;
}

double all_but_the_first(int world_size) {
  return world_size * (world_size + 1) / 2.0 - 1;
}

}  // namespace

std::vector<FormCase> forms_09() {
  return {
      right("correct-branches"),
      hangs("rank-conditional-collective", first_rank),
      hangs("local-early-stop", last_rank),
      hangs("evaluation-through-wrapper-on-one-rank", first_rank),
      right("near-miss-group-of-one"),
      right("near-miss-batch-left-out"),
      right("near-miss-wrapper-without-buffers"),
      right("correct-mismatches"),
      half_right("shape-mismatch", "crash", last_or_both),
      half_right("dtype-mismatch", "completed", last_or_both),
      half_right("order-mismatch", "crash", last_or_both),
      half_right("root-mismatch", "crash", all_ranks),
      half_right("reduce-op-mismatch", "completed", last_or_both),
      right("near-miss-filled-up"),
      right("near-miss-converted"),
      right("near-miss-waited-in-another-order"),
      right("near-miss-every-root-in-turn"),
      right("near-miss-two-operations"),
      right("correct-joining"),
      hangs("rank-skips-init", last_rank),
      hangs("subgroup-created-by-members-only", odd_ranks),
      right("near-miss-init-in-each-branch"),
      right("near-miss-used-by-members-only"),
      right("correct-failures"),
      hangs("peer-dies", last_rank),
      hangs("one-rank-raises", last_rank),
      hangs("slow-rank", last_rank),
      hangs("rank-zero-long-work", first_rank),
      right("near-miss-exception-agreed-on"),
      right("near-miss-slow-within-timeout"),
      right("near-miss-short-evaluation"),
      right("correct-async"),
      exactly("async-work-not-waited", all_but_the_first),
      right("near-miss-polled-until-done"),
  };
}

}  // namespace lockstep::testing
