// Do all ranks mean the same thing? Ask before it decides who enters the next collective.
#pragma once

#include <lockstep/dist/process_group.h>

#include <cstdint>
#include <string>

namespace lockstep {

// What the ranks said about one number; the same on every rank.
struct Agreement {
  std::int64_t least = 0, most = 0;
  std::string disagreement;  // "" or who said what: "3 on rank 1, 5 on ranks 0 and 2"
  bool agreed() const { return least == most; }
  // Of a yes or no, 1 or 0.
  bool all_yes() const { return least != 0; }
  bool any_yes() const { return most != 0; }
};

// Collective, blocks: one all-reduce (MIN) of two int64; where the ranks disagree, which all of them
// then know, one all-gather more to name who said what. Throws CollectiveError.
Agreement all_agree(c10d::ProcessGroup& group, std::int64_t value, Place place = Place::here());
Agreement all_agree(c10d::ProcessGroup& group, bool value, Place place = Place::here());

// The same, for what must be equal. Throws Error on every rank where it is not: the ranks disagree
// about `what` ("batches of an epoch"), and who said what.
void require_agreement(c10d::ProcessGroup& group, const std::string& what, std::int64_t value,
                       Place place = Place::here());

// Collective, blocks: one all-reduce (SUM) of a float32, so exact for counts of ranks. Throws CollectiveError.
double sum_over_ranks(c10d::ProcessGroup& group, double value, Place place = Place::here());

// Collective, blocks: one all-reduce (MAX). The highest rank that is a candidate; -1 where none is. Throws
// CollectiveError.
int highest_rank_of(c10d::ProcessGroup& group, bool candidate, Place place = Place::here());

}  // namespace lockstep
