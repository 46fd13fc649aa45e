// What can be wrong within one group. Each looks at what the dumps still hold and says nothing about
// the rest.
#pragma once

#include <lockstep/diagnose/finding.h>
#include <lockstep/flight/groups.h>

#include <optional>

namespace lockstep::flight {

// mismatch.cpp: the first sequence at which ranks called different things, or sizes that do not add
// up.
std::optional<diagnose::Finding> find_mismatch(const Names& names, const Group& group);

// missing.cpp: the first sequence that some ranks called and some never did.
std::optional<diagnose::Finding> find_missing(const Names& names, const Group& group);
// The last sequence that the rank called; nothing where it is overwritten.
std::optional<std::int64_t> last_called(const Group& group, const Caller& caller);

// unfinished.cpp: the first call that all made and that is not complete everywhere although it is
// on some, or although somebody's time ran out. Needs states, which Gloo's dumps do not have.
std::optional<diagnose::Finding> find_unfinished(const Names& names, const Group& group);

// p2p.cpp: of each pair of ranks with whole records, the first operation without its counterpart.
std::vector<diagnose::Finding> find_unmatched_p2p(const Names& names, const Group& group);

}  // namespace lockstep::flight
