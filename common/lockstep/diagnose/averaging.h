// Replicas that are averaged now and then, in place of their gradients.
#pragma once

#include <lockstep/diagnose/gradients.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace lockstep::diagnose {

using BeforeUpdates = std::map<std::int64_t, std::vector<const trace::BeforeUpdate*>>;

// Right before that update something had changed the parameters, and made them equal.
bool are_brought_together(const BeforeUpdates& before, std::int64_t step);

// The ranks' parameters differed after updates, and were equal before the next ones: something averages them.
bool are_averaged(const Run& run);

// are_averaged(), and what they are given is the mean of what they were, as far as that was recorded: once at least.
bool take_their_mean(const Run& run);

// Each rank's optimizer holds a part of the model, and after each update it sends that part to the others: as many numbers
// by broadcasts of its own, or by all-gathers. (A sharded optimizer by hand.)
bool send_their_parts(const Run& run);

// A tensor that is apart whenever something has brought others together before an update, and after all updates.
struct NeverAveraged {
  std::size_t tensor = 0;
  std::int64_t step = -1;  // the first after which it was seen apart
};
std::optional<NeverAveraged> left_out_of_averages(const Run& run);

// After the last update, of a run that ended in order, the parameters were recorded apart, and nothing that could average
// `elements` parameters came behind.
bool ends_apart(const Run& run, double elements);

// Enough went between the ranks after update `since`, and before their last one, to average `elements` parameters where
// nobody looked: all of them between two updates, or by and by in large pieces. What metrics need is neither. A run is
// looked at where calls of a kind come first, so this holds for older traces only.
bool may_be_averaged_unseen(const Run& run, std::int64_t since, double elements);

}  // namespace lockstep::diagnose
