// A detector names one pitfall from what a run recorded. It is a pure function of the trace: it is never told which
// program ran, and reads no file name, program name or message text.
//
// A file NAME.cpp of detectors/ begins with `std::vector<Detector> NAME_detectors()`, and CMake makes detectors() of them.
// The comment on an entry is its rule: what is wrong, what a naive check would be fooled by, and what must have been
// recorded that the entry's fields do not say. W = ranks (or devices), N = samples of the whole data set. Gradients are compared by their
// projections, relative to their norms; steps without recorded values are passed over.
#pragma once

#include <lockstep/diagnose/equations.h>
#include <lockstep/diagnose/finding.h>
#include <lockstep/diagnose/run.h>

#include <string>
#include <vector>

namespace lockstep::diagnose {

enum class Participants {
  any,
  ranks,    // each a process
  devices,  // that one process drives
};

// Why a job stops, or mixes up its collectives, from cause to effect. A violation of one stage accounts for what is
// found of a later one.
enum class Stage {
  none,          // the job goes on, and trains wrong
  start,         // what a process finds where it starts
  ranks_differ,  // what the ranks do differs
  membership,    // who joins a group, and who leaves
  collectives,   // which calls the ranks make
  failure,       // why a rank raises, or the job ends with it
  lost_rank,     // a rank that is gone, or late
  stall,         // what all of these look like
};

struct Detector {
  std::string slug;
  Equation equation{};  // that is broken where this pitfall is found
  bool whole = false;   // where it is clean, the equation held in what was recorded
  // Which lines of a program a finding points to, by what begins there (report/places.h). Empty: none; null: those that
  // its equation is about.
  const char* line = nullptr;
  // A run that lacks one of these is not asked about. It is not_applicable where fewer than `fewest` took part, and
  // not_triggered where another kind of participant did, where one left no trace and the run must be `complete`, or
  // where a kind of event in `needs` was not recorded.
  std::vector<std::string> needs = {};
  std::string or_needs = {};  // a kind of event that tells by itself, where it was recorded
  // The least that must be recorded (trace/levels.h), where that is more than for `needs`.
  int level = 0;
  Participants participants = Participants::any;
  int fewest = 2;
  bool complete = true;
  Stage stage = Stage::none;
  // It looks at all ranks of a job, whatever models they train, and so does each whose stage is another than `none` and
  // `ranks_differ`. The others look at ranks that train one model (replica_groups.h).
  bool of_job = false;
  bool is_consequence = false;  // any violation that began no later accounts for it
  bool common = false;          // advice that many right programs have: told last
  // Other findings that follow from a violation of this one; of a mixed-up collective, those that show no earlier.
  std::vector<std::string> accounts_for = {};
  // Asked of runs that have all of these.
  Verdict (*detect)(const Run&) = nullptr;

  Verdict verdict(const Run& run) const;
  // A kind in `needs` that was not recorded; empty: none.
  std::string missing(const Run& run) const;
  bool looks_at_all() const;
  int lowest_level() const;
};

// All of them, by slug.
const std::vector<Detector>& detectors();
const Detector* detector_of(const std::string& slug);  // null: none

}  // namespace lockstep::diagnose
