// What the top of a pitfall's page says of its fault, for a run on W ranks (or devices). A fact is one value, or one for
// each W: `2: 16, 3: 11, else: 4`.
//
//   level: 1                       the least that must be recorded (trace/levels.h), for trace.md
//   needs: `loss`; `update`        the events: those that must be recorded; others that it goes by
//   breaks: mean-gradient          the equation (diagnose/equations.h) that the fault breaks
//   calls: metric                  what a program must tell itself, for docs/calls.md
//   ranks: all                     at fault: all, first, last, or a list: [0, 2]
//   step: 4                        the first at which it can be seen; -1 = before training; left out where none is
//   figure: at least 0.01          that the lesson's oracle observes: a number, W, 1/W; `within 0.001`: how closely
//   ending: crash                  how the broken variant ends; left out: completed
//   on: 3                          ranks that the tests run it on, where fewer cannot tell; left out: the fewest it needs
//   severity: advice               of the finding; left out: violation
//   also: replicas-diverged        what else is found, and follows from it; of a crash: what may be found
//   unrelated: local-batch-norm    advice that is found too, and does not follow
//   near: near-miss-sweep          the near misses, or `none. WHY`; never left out (tests/lint)
//   gpu: needed                    left out where the lesson needs none
#pragma once

#include <lockstep/report/page.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::report {

struct Figure {
  double value = 0;
  double within = 0;      // how closely
  bool at_least = false;  // `value` is a lower bound: the figure depends on the data
};

struct Facts {
  std::vector<int> ranks;  // empty where nothing is said for W
  std::optional<std::int64_t> step;
  std::optional<Figure> figure;
  std::string ending = "completed";
  int on = 0;
  bool advice = false;
  bool needs_gpu = false;
  std::vector<std::string> also, unrelated;
};

// Throws Error, which names page and fact, for one that cannot be read, or that there is not.
Facts facts_of(const Page& page, int world_size);

}  // namespace lockstep::report
