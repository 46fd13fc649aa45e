// What must hold in every data-parallel training. Each detector looks for a way to break one of these equations, and
// each run has a line for each of them (ledger.h).
#pragma once

#include <string>

namespace lockstep::diagnose {

// From a job's start to its end, and within a step from what is drawn to what is saved.
enum class Equation {
  one_job,
  equal_start,
  equal_settings,
  own_samples,
  new_order,
  modes,
  random_numbers,
  loss_weights,
  mean_gradient,
  clipped_once,
  rates,
  all_moved,
  equal_after,
  buffers,
  joined_figures,
  saved_is_held,
  same_calls,
  none,  // the fault costs time, and the training is right
};
inline constexpr int kEquations = 17;  // without `none`

struct EquationText {
  const char* slug;
  const char* sentence;
  const char* per;   // what it must hold for
  const char* line;  // which lines of a program it is about (report/places.h); empty: none
};
const EquationText& text_of(Equation equation);                // of `none`: empty, but for its slug
const EquationText* equation_called(const std::string& slug);  // null: none

}  // namespace lockstep::diagnose
