// What the benchmark prints, and the rule that its page gives.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

namespace lockstep::benchmark {

// Milliseconds that a step should take: computing, and what backward cannot hide of the all-reduce. The last bucket
// fills when backward is over, so at least its share is waited for.
double rule(double computing, double backward, double all_reduce, std::int64_t buckets);

// The lines, as a list: medians, milliseconds a step.
nlohmann::json printed(const nlohmann::json& cases);

}  // namespace lockstep::benchmark
