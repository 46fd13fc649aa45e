// Whether a mutant trains wrong, by what its ranks computed: no trace, no detector.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "parts.h"

namespace lockstep::mutants {

void save(const Seen& seen, const std::filesystem::path& folder, int rank);
Seen load(const std::filesystem::path& folder, int rank);

// The equations that a check may leave out: none of a randomised forward.
struct Tolerance {
  bool gradients = true;   // can be computed again from the inputs
  double relative = 1e-3;  // of a gradient
};

// The checks that fail, each with what was seen; none of a program that trains right:
//   replicas   before every update and at the end, all ranks hold the same parameters
//   gradient   every rank's gradient is that of the mean loss over all ranks' samples of this update (clipped,
//              where the program clips), at rank 0's parameters, computed here in one process
//   update     rank 0's parameters moved as the program's optimizer moves them by that gradient
//   samples    in every epoch each sample was drawn once, over all ranks, and by another order than before
//   contents   a rank's samples are the data set's (but for noise, of which no two ranks have the same)
//   score      what rank 0 reported at the end is what one process gets on the whole test set
std::map<std::string, std::string> check(const Program& program, const std::vector<Seen>& ranks,
                                         const Tolerance& tolerance);

}  // namespace lockstep::mutants
