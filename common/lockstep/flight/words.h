// The words of a verdict, and what the texts of a dump say.
#pragma once

#include <lockstep/flight/groups.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::flight {

// "all_reduce" of "nccl:all_reduce".
std::string_view operation_of(const Names& names, const Entry& entry);
// "all_gather [[2]] -> [[3, 2]] Float"; of a coalesced call, its parts.
std::string call_text(const Names& names, std::span<const Entry> calls);
// " (step at train.py:17)", empty where no frame was kept.
std::string call_site(const Names& names, std::span<const Entry> calls);
std::string group_text(const Names& names, const Group& group);  // "0 (default_pg)"

// Elements of all tensors of "[[4], [2, 3]]": 10. Wraps around where they do not fit.
std::uint64_t numel(std::string_view sizes);

}  // namespace lockstep::flight
