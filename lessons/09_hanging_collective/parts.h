// The parts of lesson 09, one file each, and what they share.
#pragma once

#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>

// Every part's oracle of a hang: ranks that came to the end of their work.
inline void reach_the_end(lockstep::RankContext& context) {
  lockstep::add_figure(context, "reached_the_end", 1);
}
inline lockstep::Measured ranks_at_the_end(const lockstep::Outcomes& outcomes) {
  double reached = 0;
  for (const auto& outcome : outcomes) reached += outcome.figures.count("reached_the_end") ? 1 : 0;
  return {.expected = static_cast<double>(outcomes.size()), .observed = reached, .tolerance = 0};
}

lockstep::Part branches_part();
lockstep::Part mismatches_part();
lockstep::Part joining_part();
lockstep::Part failures_part();
lockstep::Part async_part();
