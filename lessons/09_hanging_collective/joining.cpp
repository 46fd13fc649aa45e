// Lesson 09, part "joining": making a process group is a collective.
//
// Concept:  our init_process_group blocks until all ranks of the job have called it (PyTorch's may
//           not, over NCCL). A new group is made by all ranks of its parent, also by those that
//           will not be in it: they agree on its name that way.
// Symptom:  the ranks that call it wait for those that do not, until the timeout.
#include <lockstep/train/agreement.h>

#include "parts.h"

namespace {

using namespace lockstep;

void join(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  // As where a variable that asks for distributed training is not set on one machine.
  if (fault("rank-skips-init") && context.rank() == world_size - 1) return;
  if (fault("near-miss-init-in-each-branch")) {
    // Near miss: two branches by rank, and each joins.
    if (context.rank() == world_size - 1)
      context.join(context.patience());
    else
      context.join(context.patience());
  } else {
    context.join(context.patience());
  }

  // A group of the even ranks. All ranks wait at the end.
  std::vector<int> even;
  for (int rank = 0; rank < world_size; rank += 2) even.push_back(rank);
  ProcessGroupPtr group;
  if (fault("subgroup-created-by-members-only")) {
    if (context.rank() % 2 == 0) group = context.new_group(even, context.patience());
  } else {
    group = context.new_group(even, context.patience());
  }
  // Near miss: a group that all ranks make is used by its members only.
  if (fault("near-miss-used-by-members-only") && context.rank() % 2 == 0) {
    auto members = at::ones({1}, context.device());
    all_reduce(*group, members);
  }
  barrier(*context.group());
}

}  // namespace

lockstep::Part joining_part() {
  const Oracle oracle{"ranks that came to the end with a group", ranks_at_the_end};
  return {.name = "joining",
          .run = join,
          .broken = {{.slug = "rank-skips-init",
                      .what = "the last rank never calls init_process_group",
                      .oracle = oracle,
                      .crashes = true},
                     {.slug = "subgroup-created-by-members-only",
                      .what = "a group of the even ranks is made by the even ranks",
                      .oracle = oracle,
                      .crashes = true}},
          .near_misses = {{.name = "near-miss-init-in-each-branch",
                           .slug = "rank-skips-init",
                           .naive_check = "init_process_group inside of `if (rank == last)`"},
                          {.name = "near-miss-used-by-members-only",
                           .slug = "subgroup-created-by-members-only",
                           .naive_check = "not all ranks call a collective of the group"}},
          .participants = Participants::strangers,
          .notes = notes<AtTheEnd>};
}
