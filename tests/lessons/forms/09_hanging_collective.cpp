#include "../forms.h"

namespace lockstep::testing {

namespace {

// No rank comes to the end: those that are waited for fail, or fail in waiting for the others.
FormCase hangs(std::string form) {
  return exactly(std::move(form), always(0), 2, 0, "crash");
}

// Every rank's first of two rounds is right.
FormCase half_right(std::string form, std::string ending) {
  return exactly(
      std::move(form), [](int world_size) { return double(world_size); }, 2, 0, std::move(ending));
}

double all_but_the_first(int world_size) {
  return world_size * (world_size + 1) / 2.0 - 1;
}

}  // namespace

std::vector<FormCase> forms_09() {
  return {
      right("correct-branches"),
      hangs("rank-conditional-collective"),
      hangs("local-early-stop"),
      hangs("evaluation-through-wrapper-on-one-rank"),
      right("near-miss-group-of-one"),
      right("near-miss-batch-left-out"),
      right("near-miss-wrapper-without-buffers"),
      right("correct-mismatches"),
      half_right("shape-mismatch", "crash"),
      half_right("dtype-mismatch", "completed"),
      half_right("order-mismatch", "crash"),
      half_right("root-mismatch", "crash"),
      half_right("reduce-op-mismatch", "completed"),
      right("near-miss-filled-up"),
      right("near-miss-converted"),
      right("near-miss-waited-in-another-order"),
      right("near-miss-every-root-in-turn"),
      right("near-miss-two-operations"),
      right("correct-joining"),
      hangs("rank-skips-init"),
      hangs("subgroup-created-by-members-only"),
      right("near-miss-init-in-each-branch"),
      right("near-miss-used-by-members-only"),
      right("correct-failures"),
      hangs("peer-dies"),
      hangs("one-rank-raises"),
      hangs("slow-rank"),
      hangs("rank-zero-long-work"),
      right("near-miss-exception-agreed-on"),
      right("near-miss-slow-within-timeout"),
      right("near-miss-short-evaluation"),
      right("correct-async"),
      exactly("async-work-not-waited", all_but_the_first),
      right("near-miss-polled-until-done"),
  };
}

}  // namespace lockstep::testing
