// What is compared: one function for what an equation, or a few that are read off the same events, say of two runs.
#pragma once

#include <lockstep/compare/seen.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::compare {

void compare_setup(const Pair& pair, Seen& seen);
// The parameters before training, and after each update.
void compare_start(const Pair& pair, Seen& seen);
void compare_parameters(const Pair& pair, Seen& seen);
// What each update makes of equal gradients: of the parameters, until the step at which what goes into it differs. Their
// tensors are in compare_parameters().
void compare_moves(const Pair& pair, std::optional<std::int64_t> until, Seen& seen);
void compare_samples(const Pair& pair, Seen& seen, Seen& order);
void compare_random(const Pair& pair, Seen& seen);
// What a training forward was given, before `until` (nothing: always): another random number is another input.
void compare_inputs(const Pair& pair, std::optional<std::int64_t> until, Seen& seen);
void compare_modes(const Pair& pair, Seen& seen);
void compare_losses(const Pair& pair, Seen& seen);
// `calm`: steps after which the parameters agree.
void compare_local_gradients(const Pair& pair, const Steps& calm, Seen& seen);
void compare_reduced_gradients(const Pair& pair, const Steps& calm, Seen& seen);
void compare_clips(const Pair& pair, Seen& seen);
void compare_rates(const Pair& pair, Seen& seen);
void compare_buffers(const Pair& pair, Seen& seen);
void compare_metrics(const Pair& pair, Seen& seen);
// `rounded` and `differ`: since which steps values are not equal to the bit, and not equal to rounding. From the first to
// the second of these steps, both included, hashes that differ mean nothing.
void compare_checkpoints(const Pair& pair, std::optional<std::int64_t> rounded,
                         std::optional<std::int64_t> differ, Seen& seen);

// Whether both models have as many parameters, of the same shapes; else nothing of them is compared.
bool models_fit(const Pair& pair);

// Tells of settings that may differ where the training does not: they are a cause only where something else differs, too.
using Tell = std::function<void(int rank, const std::string& what, const std::string& a,
                                const std::string& b)>;
void for_each_other_setting(const Pair& pair, const Tell& tell);
// What the machines and versions were: told, and never a cause by itself.
std::vector<std::string> compare_surroundings(const Pair& pair);
// How the names of parameters differ, for a note.
std::optional<std::string> compare_names(const Pair& pair);

}  // namespace lockstep::compare
