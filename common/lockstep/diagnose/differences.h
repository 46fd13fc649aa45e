// What ranks that train one model have otherwise than each other, and the words for it.
#pragma once

#include <lockstep/diagnose/evidence.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::diagnose {

constexpr std::size_t kAgreeing = 3;  // probed steps, before a value is called a rank's own

// "a, b, c and 5 more", where there are more than one above `most`.
std::string some_of(std::vector<std::string> parts, std::size_t most = 3);

// Each text once, in order, with the ranks that have it.
std::vector<std::pair<std::string, std::vector<int>>> ranks_by_text(
    const std::vector<int>& ranks, const std::vector<std::string>& texts);

// One text for each rank. Where they differ: `what`, and who has which. The caller names the finding.
std::optional<Finding> differs(const Run& run, const std::string& what,
                               const std::vector<std::string>& texts, std::int64_t step);

// The group of each rank: of sorted values, a gap wider than `apart` begins a new one.
std::vector<std::size_t> groups_by_gap(const std::vector<double>& values, double apart);

// What `find` finds in ranks that train one model.
Verdict among_replicas(const Run& run, std::vector<Finding> (*find)(const Run&));

}  // namespace lockstep::diagnose
