// One function for each aspect: it compares what both runs recorded of it, and writes down what it sees.
#pragma once

#include <lockstep/compare/aligned.h>
#include <lockstep/compare/ledger.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep::compare {

void compare_setup(const Pair& pair, Ledger& ledger);
void compare_data(const Pair& pair, Ledger& ledger);
void compare_random(const Pair& pair, Ledger& ledger);
// What a training forward was given, before `until` (nothing: always): another random number is another input.
void compare_inputs(const Pair& pair, std::optional<std::int64_t> until, Ledger& ledger);
void compare_initial(const Pair& pair, Ledger& ledger);
void compare_modes(const Pair& pair, Ledger& ledger);
void compare_losses(const Pair& pair, Ledger& ledger);
// `calm`: steps after which the parameters agree.
void compare_local_gradients(const Pair& pair, const std::set<std::int64_t>& calm, Ledger& ledger);
void compare_reduced_gradients(const Pair& pair, const std::set<std::int64_t>& calm,
                               Ledger& ledger);
void compare_hyper_parameters(const Pair& pair, Ledger& ledger);
void compare_updates(const Pair& pair, Ledger& ledger);
void compare_buffers(const Pair& pair, Ledger& ledger);
void compare_metrics(const Pair& pair, Ledger& ledger);
// `rounded` and `differ`: since which steps values are not equal to the bit, and not equal to rounding. From the first to
// the second of these steps, both included, hashes that differ mean nothing.
void compare_checkpoints(const Pair& pair, std::optional<std::int64_t> rounded,
                         std::optional<std::int64_t> differ, Ledger& ledger);

// Whether both models have as many parameters, of the same shapes; else nothing of them is compared.
bool models_fit(const Pair& pair);

// Settings that may differ where the training does not: they are a cause only where something else differs, too.
std::vector<Difference> compare_causes(const Pair& pair);
// What the machines and versions were: told, and never a cause by itself.
std::vector<std::string> compare_surroundings(const Pair& pair);
// How the names of parameters differ, for a note.
std::optional<std::string> compare_names(const Pair& pair);

}  // namespace lockstep::compare
