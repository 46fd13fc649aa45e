// Rank 0 saves, all ranks know how it went.
#pragma once

#include <lockstep/dist/process_group.h>

#include <functional>

namespace lockstep {

// Collective. Runs `save` on rank 0; no rank returns before it is done, so that what was saved is
// there for all. Where it throws, every rank throws: rank 0 what `save` threw, even where it could
// not tell the others; the others Error with rank 0's text. Throws CollectiveError when a rank is
// missing; the wait is bounded by the group's timeout, which must be longer than a save takes.
//
//   save_on_rank_zero(*group, [&] { save_checkpoint(path, Value::Dict{{"model", state_dict(*net)}}); });
void save_on_rank_zero(c10d::ProcessGroup& group, const std::function<void()>& save,
                       Place place = Place::here());

}  // namespace lockstep
