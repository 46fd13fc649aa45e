// A run's collectives, by where they meet: the same number of the same group on every rank.
// Point-to-point operations are left out, since only two ranks take part.
#pragma once

#include <lockstep/diagnose/evidence.h>
#include <lockstep/trace/point_to_point.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace lockstep::diagnose {

struct Call {
  int rank;
  std::int64_t step;
  std::int64_t time_ns;  // entered
  std::int64_t left_ns;  // 0 = still inside
  const trace::Collective* collective;
  const std::string* phase;  // of the innermost pass that it was made in; null outside of any
};
bool completed(const Call& call);  // left, and not failed
using Calls = std::map<std::pair<std::string, std::int64_t>, std::vector<Call>>;  // group, sequence

// Of the last attempt, where there were several. A place's calls are in the order of the ranks.
const Calls& calls_of(const Run& run);

bool has_calls(const Run& run);  // calls_of() has any

// Every rank makes the same calls in the same order, as far as it gets, and in no group one twice: then there
// is no mismatch and no ambiguous group. Asked before calls_of(), which takes far longer.
bool all_call_alike(const Run& run);

// Every rank makes its k-th call in a pass of the same phase as the others. Asked before calls_of(), which takes far
// longer.
bool made_in_the_same_passes(const Run& run);

// Groups in which one rank has a sequence twice: several groups under one name, or one that began
// anew. Which of their calls belong together cannot be told.
std::set<std::string> ambiguous_groups(const Calls& calls);
// calls_of() without theirs.
const Calls& unambiguous_calls(const Run& run);

// Of the calls of one place: when the first rank entered it.
std::int64_t entered_ns(const std::vector<Call>& place);

// What must be equal on all ranks: operation, reduce operation, root, dtype, and the sizes where the
// operation asks for equal ones.
using Signature =
    std::tuple<std::string, std::string, std::int64_t, std::string, std::vector<std::int64_t>>;
Signature signature(const trace::Collective& call);

// Of the calls of one place: the ranks in the minority, all that differ where there is none.
std::vector<int> odd_ranks(const std::vector<Call>& place);

std::string describe(const trace::Collective& call);       // "allreduce sum float32 203530"
std::string numbered(const trace::Collective& call);       // "allreduce number 7"
std::string describe_all(const std::vector<Call>& calls);  // "ranks 0 and 2: ...; rank 1: ..."

// Every rank made as many calls in each update, but for the last that all have come to. Asked before calls_of(),
// which takes far longer.
bool all_call_equally_often(const Run& run);

// The first place in time at which ranks made one call, each in another update of its own (which of them
// left one out before, or made one more, follows from what they called in the updates before); null: none.
const std::vector<Call>* first_out_of_step(const Calls& calls);

// The first place in time at which ranks called different collectives.
struct Mismatch {
  const std::vector<Call>* calls;  // of one group and sequence
  std::vector<int> odd;            // odd_ranks() of them
};
std::optional<Mismatch> first_mismatch(const Calls& calls);

}  // namespace lockstep::diagnose
