// Two recorded runs of what should be the same training: until where they agree, and what differs first. Of each equation
// (diagnose/equations.h) there is a line: it is held where the runs agree, and broken where they part.
#pragma once

#include <lockstep/diagnose/ledger.h>
#include <lockstep/trace/reader.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep::compare {

struct Distance {
  double distance = 0, tolerance = 0;  // relative
};
using Distances = std::map<std::int64_t, Distance>;  // the largest of each step that has one
using Steps = std::set<std::int64_t>;  // each is the updates done before it; -1: before training

// What was compared of an equation.
struct Compared {
  diagnose::Line line;
  Steps steps;
  Steps only_a, only_b;    // that one run alone recorded, while both went on
  bool to_the_bit = true;  // in all that was compared
  Distances distances;     // of values that are not equal to the bit
  // Of each tensor that was compared, in the model's order; a distance is infinite where one run alone has the tensor, or has
  // numbers in it.
  struct Tensor {
    std::string name;
    Distances distances;
  };
  std::vector<Tensor> tensors;

  bool parts() const { return line.standing == diagnose::Standing::broken; }
  // Whether each run has probed steps that the other lacks.
  bool probes_apart() const { return !only_a.empty() && !only_b.empty(); }
};

enum class Answer { equal, rounding, different, undecided };
const char* to_string(Answer answer);

struct Comparison {
  int ranks_a = 0, ranks_b = 0;               // world sizes
  std::int64_t updates_a = 0, updates_b = 0;  // those that a GradScaler left out are some, too
  double unit = 0;                            // diagnose::rounding_unit()
  Answer answer = Answer::undecided;
  std::vector<Compared> ledger;  // of each equation, in order
  // Whose difference comes first: at the earliest step, then in their order. A checkpoint's comes first of its step: its
  // file is read or written before.
  std::optional<diagnose::Equation> first;
  std::optional<std::int64_t>
      agree_until;                 // the last step before it at which anything was compared
  std::vector<std::string> notes;  // how they were set up, and where they were probed differently

  const Compared& of(diagnose::Equation equation) const {
    return ledger[static_cast<std::size_t>(equation)];
  }
};

// Ranks are compared one by one where both runs have as many, else what they hold together. Steps are updates of the
// whole job, over all its attempts (trace::read_job). Nothing is thrown.
Comparison compare(const trace::Trace& a, const trace::Trace& b);
// The same of two folders, each of a run or of a job's attempts. Throws UsageError where both are one folder, or a trace
// cannot be read.
Comparison compare_folders(const std::filesystem::path& a, const std::filesystem::path& b);

// For people, at most 80 columns a line; and as JSON. `a` and `b` are the runs' names; `lockstep` is the command that the
// reader is told to call.
std::string to_text(const Comparison& comparison, const std::string& a, const std::string& b,
                    const std::string& lockstep = "./lockstep");
// The answer in a sentence: "A and B agree until step 15, then they differ."
std::string verdict_text(const Comparison& comparison);
std::string to_json(const Comparison& comparison, const std::string& a, const std::string& b);

}  // namespace lockstep::compare
