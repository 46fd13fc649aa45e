// A store that outlives a job's attempts, and the part of it that belongs to one. Internal to dist.
#pragma once

#include <lockstep/dist/backends.h>

#include <chrono>

namespace lockstep::detail {

// Collective over the job's ranks, blocking at most `timeout`: a part of `store` that no earlier
// attempt has written to. torchrun's agents keep one store for all attempts (torch 2.11), so a rank may
// find there where a peer of the attempt before listened, and go to that. Their restart counts do not
// tell attempts apart: an agent that starts its ranks again because another did does not count it.
//
// Rank 0 lists the ranks' words, chosen at random, and each rank confirms a list that its own word
// is on; what an earlier attempt left is never confirmed. Throws std::runtime_error naming those that
// did not.
StorePtr part_of_this_attempt(const StorePtr& store, const Ranks& ranks,
                              std::chrono::milliseconds timeout);

}  // namespace lockstep::detail
