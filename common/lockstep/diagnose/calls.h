// A run's collectives, by where they meet: the same number of the same group on every rank.
// Point-to-point operations are left out, since only two ranks take part.
#pragma once

#include <lockstep/diagnose/evidence.h>

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
  const trace::Collective* collective;
};
using Calls = std::map<std::pair<std::string, std::int64_t>, std::vector<Call>>;  // group, sequence

bool is_point_to_point(const trace::Collective& call);

// Of the last attempt, where there were several.
Calls calls_of(const Run& run);

// Groups in which one rank has a sequence twice: several groups under one name, or one that began
// anew. Which of their calls belong together cannot be told.
std::set<std::string> ambiguous_groups(const Calls& calls);
Calls without_ambiguous_groups(Calls calls);

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
std::string describe_all(const std::vector<Call>& calls);  // "rank 0: ...; rank 1: ..."

// The first place in time at which ranks called different collectives.
struct Mismatch {
  const std::vector<Call>* calls;  // of one group and sequence
  std::vector<int> odd;            // odd_ranks() of them
};
std::optional<Mismatch> first_mismatch(const Calls& calls);

}  // namespace lockstep::diagnose
