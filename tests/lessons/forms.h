// What every form of every lesson must show: the oracle's figure, by world size. One file a lesson
// in forms/.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace lockstep::testing {

using Figure = std::function<double(int world_size)>;

struct FormCase {
  std::string lesson = {};
  std::string form;
  // Broken: what its oracle must observe at this world size, and how closely.
  Figure observed = {};
  double tolerance = 0;
  int min_world_size = 1;
  std::string ending = "completed";
  bool at_least = false;   // `observed` is a lower bound: the figure depends on the data
  bool advice = false;     // found as advice: the code may be a choice
  bool needs_gpu = false;  // skipped, with the reason, where there are too few
  // The ranks that its finding must name; where it is not given, any.
  std::function<std::vector<int>(int world_size)> ranks = {};
};

// A correct form or a near miss.
FormCase right(std::string form, int min_world_size = 1);
// A broken form whose figure is known.
FormCase exactly(std::string form, Figure observed, int min_world_size = 2, double tolerance = 0,
                 std::string ending = "completed");
// A broken form whose figure is at least this.
FormCase at_least(std::string form, double observed, int min_world_size = 2);
Figure always(double value);

std::vector<FormCase> forms_01();
std::vector<FormCase> forms_02();
std::vector<FormCase> forms_03();
std::vector<FormCase> forms_04();
std::vector<FormCase> forms_05();
std::vector<FormCase> forms_06();
std::vector<FormCase> forms_07();
std::vector<FormCase> forms_08();
std::vector<FormCase> forms_09();
std::vector<FormCase> forms_10();
std::vector<FormCase> forms_11();
std::vector<FormCase> forms_12();
std::vector<FormCase> forms_13();
std::vector<FormCase> forms_14();
std::vector<FormCase> forms_15();
std::vector<FormCase> forms_16();
std::vector<FormCase> forms_17();
std::vector<FormCase> forms_18();

std::vector<FormCase> all_forms();

}  // namespace lockstep::testing
