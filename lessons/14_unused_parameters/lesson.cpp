// Lesson 14: whose gradients? The engine, the optimizer and the model must hold the same
// parameters, and each parameter's gradient must come once in every backward that reduces.
//
//   branches.cpp    a head that some batches do not use
//   two_losses.cpp  two losses on one trunk
//   freezing.cpp    a layer frozen before or after the engine counted it
//   optimizer.cpp   an optimizer for the model that is trained, and gradients it can clear
//
// Run:  ./lockstep run 14_unused_parameters
//       14_unused_parameters --variant unused-parameter --world-size 4
#include <algorithm>

#include "parts.h"

lockstep::Measured right_steps(const lockstep::Outcomes& outcomes, int wanted) {
  std::ptrdiff_t fewest = wanted;
  for (const auto& outcome : outcomes) {
    const auto found = outcome.figures.find("distance");
    std::ptrdiff_t right = 0;
    // Sums of float32 in another order differ by about 1e-6.
    if (found != outcome.figures.end())
      right = std::count_if(found->second.begin(), found->second.end(),
                            [](double distance) { return distance <= 1e-4; });
    fewest = std::min(fewest, right);
  }
  return {.expected = static_cast<double>(wanted),
          .observed = static_cast<double>(fewest),
          .tolerance = 0};
}

int main(int argc, char** argv) {
  return lockstep::lesson_main(
      argc, argv,
      {.name = "14_unused_parameters",
       .title = "Whose gradients: every parameter once, and the optimizer's own",
       .parts = {branches_part(), two_losses_part(), freezing_part(), optimizer_part()}});
}
