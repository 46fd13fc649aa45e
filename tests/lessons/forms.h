// What every form of every lesson must show: the oracle's figure, by world size.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace lockstep::testing {

struct FormCase {
  std::string lesson;
  std::string form;
  // Broken: what its oracle must observe at this world size, and how closely.
  std::function<double(int world_size)> observed;
  double tolerance = 0;
  int min_world_size = 1;
  std::string ending = "completed";
  bool at_least = false;  // `observed` is a lower bound: the figure depends on the data
};

std::vector<FormCase> all_forms();

}  // namespace lockstep::testing
