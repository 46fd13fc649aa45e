// A job's process groups, put together from what its ranks recorded.
#pragma once

#include <lockstep/flight/folder.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep::flight {

// A member of a group with a dump, and what is left of its calls there.
struct Caller {
  int rank = -1;
  const Dump* dump = nullptr;
  std::span<const Entry> collectives;  // by sequence; those of a coalesced call share one
  std::span<const Entry> p2p;          // as recorded

  // Those of one sequence; empty where there are none or they are overwritten.
  std::span<const Entry> at(std::int64_t sequence) const;
  // Every call that the rank made in this group is there.
  bool is_whole() const { return !dump->is_cut && !dump->has_holes; }
};

// How the members are known: from the dumps' configuration, because it is the default group, or
// from who called it (a member that never did is then invisible).
enum class Members { configured, world, callers };

struct Group {
  NameId name = kNoName, description = kNoName;
  Members known_by = Members::callers;
  std::vector<int> members;     // global ranks, ascending; a rank in the group is a place in it
  std::vector<Caller> callers;  // by rank
  // Ranks by the shapes of an all_gather or reduce_scatter; 0 where none tells.
  std::uint64_t size_by_shapes = 0;
};

struct Job {
  std::vector<Group> groups;  // the larger first
  std::vector<int> without_dump;
  std::vector<int> newest_group;  // by place in Dumps::ranks: where its newest call was; -1 = none
};

// Sorts the entries of the dumps, which must outlive the job. Throws Error for a group whose ranks
// are not a list of numbers.
Job put_together(Dumps& dumps);

}  // namespace lockstep::flight
