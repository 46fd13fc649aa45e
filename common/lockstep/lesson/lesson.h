// What a lesson is: a training run in several variants, and an oracle for each fault that needs no
// detector.
//
//   Outcome-writing run   ranks train and write down what they saw (losses, sample ids, figures)
//   Oracle                a pure function of all ranks' outcomes: expected against observed
//   Detectors             judge the trace alone (diagnose/); an oracle never sees it
#pragma once

#include <lockstep/lesson/notes.h>
#include <lockstep/lesson/rank_context.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Which variant is running; true for the one named. A lesson asks for each pitfall in one place, as
// the condition of an if or a ?: that course/fold.h can resolve.
class Fault {
 public:
  explicit Fault(std::string variant) : variant_(std::move(variant)) {}
  bool operator()(std::string_view variant) const { return variant == variant_; }
  const std::string& variant() const { return variant_; }

 private:
  std::string variant_;
};

// A figure that is right within a tolerance when the fault is absent. NaN is never right.
struct Measured {
  double expected = 0;
  double observed = 0;
  double tolerance = 0;
  bool manifested() const;
};

// All ranks' outcomes, by rank (lesson 02: one process, one outcome).
using Outcomes = std::vector<Outcome>;

struct Oracle {
  std::string metric;  // what is measured, with its unit
  Measured (*measure)(const Outcomes& outcomes);
};

// A deliberately broken variant. Its name is the pitfall's slug.
struct Broken {
  std::string slug;
  std::string what;  // one line: what it does wrong
  Oracle oracle;
  bool crashes = false;    // ends with an error, not with a wrong result
  int min_world_size = 2;  // cannot show on fewer
  bool own_gpus = false;   // cannot show where ranks share a GPU
  bool alone = false;      // nobody tells the processes their ranks
};

// Looks broken and is right: fools the naive check it names.
struct NearMiss {
  std::string name;         // starts with "near-miss-"
  std::string slug;         // the pitfall it resembles; judged by that pitfall's oracle
  std::string naive_check;  // what would raise a false alarm
  bool alone = false;       // as Broken has it
};

enum class Participants {
  processes,  // world_size ranks with a process group
  strangers,  // world_size ranks without one: the run itself calls RankContext::join()
  devices,    // one process that drives world_size logical devices
};

// One training program of a lesson, with the faults that live in it.
struct Part {
  std::string name;
  void (*run)(RankContext& context, const Fault& fault);
  std::vector<Broken> broken;
  std::vector<NearMiss> near_misses = {};
  Participants participants = Participants::processes;
  // How often the launcher starts the job again when a rank fails. Where it is given, each attempt has a
  // folder of its own, and an oracle sees what all attempts wrote.
  int (*max_restarts)(const Fault& fault) = nullptr;
  // Of one process that drives devices: whether what moves between them is recorded.
  bool records_transfers = true;
  // What the oracles judge by; a plain Notes where it is not given. Made before the training begins.
  std::shared_ptr<Notes> (*notes)(RankContext& context, const Fault& fault) = nullptr;

  // "correct" where the lesson has one part, else "correct-<name>".
  std::string correct_name(bool only_part) const {
    return only_part ? "correct" : "correct-" + name;
  }
};

struct Lesson {
  std::string name;   // "05_set_epoch", as its folder
  std::string title;  // one line
  std::vector<Part> parts;
  int default_world_size = 2;
};

// A lesson's main: the launcher, a rank, or `--describe`, as the environment and the command line
// say. It ends the process (base/end_process.h).
int lesson_main(int argc, char** argv, const Lesson& lesson);

}  // namespace lockstep
