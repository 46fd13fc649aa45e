// Two recorded runs of what should be the same training: until where they agree, and what differs first.
#pragma once

#include <lockstep/trace/reader.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::compare {

// In the order of causes: of what differs at one step, the first is what the others may follow from. Random numbers are
// drawn for a batch before it goes forward, so they stand before it. A checkpoint stands last, but counts as the
// first of its step: its file is read or written before the step.
enum class Aspect {
  configuration,
  data,
  random,
  initial,
  mode,
  loss,
  local_gradients,
  reduced_gradients,
  hyper_parameters,
  update,
  buffers,
  metric,
  checkpoint
};
inline constexpr int kAspects = 13;
const char* to_string(Aspect aspect);  // "local_gradients"

enum class Relation { equal, rounding, different };  // to the bit; within the tolerance; neither
const char* to_string(Relation relation);

struct Difference {
  std::int64_t step = -1;  // updates done before it; -1: before training
  std::vector<int> ranks;  // empty: of all ranks together
  std::string what;        // "gradient of fc1.weight"
  std::string a, b;        // what each run has
  double distance = 0;     // relative; 0 where the values are no numbers
  double tolerance = 0;    // that it exceeds
};

struct AspectResult {
  Aspect aspect = Aspect::configuration;
  bool in_a = false, in_b = false;           // recorded there at all
  std::vector<std::int64_t> steps;           // that were compared, ascending
  std::vector<std::int64_t> only_a, only_b;  // that one run alone recorded, while both went on
  Relation relation = Relation::equal;       // the worst
  std::optional<Difference> first;           // that is no rounding
  std::size_t differing_steps = 0;           // how many of `steps` differ
  std::size_t more = 0;                      // differences beside `first` at its step
  // Of each step the largest distance that is above 0, and the tolerance there.
  struct Distance {
    std::int64_t step;
    double distance, tolerance;
  };
  std::vector<Distance> distances;
  // Of each tensor that was compared, in the model's order: its steps that are not equal to the bit, with the largest
  // distance over the ranks; infinite where one run alone has the tensor, or has numbers in it.
  struct Tensor {
    std::string name;
    std::vector<Distance> distances;
  };
  std::vector<Tensor> tensors;
  // Whether each run has probed steps that the other lacks.
  bool probes_apart() const { return !only_a.empty() && !only_b.empty(); }
};

enum class Answer { equal, rounding, different, undecided };
const char* to_string(Answer answer);

struct Comparison {
  int ranks_a = 0, ranks_b = 0;  // world sizes
  std::int64_t updates_a = 0,
               updates_b = 0;  // steps; those that a GradScaler left out are some, too
  double unit = 0;             // half the distance of 1 to the next number of the coarsest dtype
  Answer answer = Answer::undecided;
  std::vector<AspectResult> aspects;  // all, in the order of causes
  std::optional<Aspect> first;  // whose difference comes first: the earliest step, then the order
  // The last step before it at which every aspect that was compared agrees; nothing: none.
  std::optional<std::int64_t> agree_until;
  std::vector<std::string>
      notes;  // how they were set up differently, and what could not be compared

  const AspectResult& of(Aspect aspect) const { return aspects[static_cast<std::size_t>(aspect)]; }
};

// Ranks are compared one by one where both runs have as many, else what they hold together. Steps are updates of the
// whole job, over all its attempts (trace::read_job). Nothing is thrown: what cannot be compared is in the notes.
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
