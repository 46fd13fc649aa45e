// A recorded run, as the detectors see it: its ranks in order, and what several detectors ask for, computed once.
#pragma once

#include <lockstep/trace/reader.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace lockstep::diagnose {

struct Run {
  const trace::Trace& trace;
  int world_size = 0;                                 // participants: of a part of a job, its own
  bool is_part = false;                               // of a job
  bool devices = false;                               // one process drives the participants
  bool complete = false;                              // every participant left a trace
  std::vector<const trace::ParticipantTrace*> ranks;  // by rank
  std::vector<int> numbers;                           // their ranks
  std::set<std::string> kinds;  // of event that any of them recorded; "rank_end": the launcher did

  explicit Run(const trace::Trace& trace);  // which must outlive it, and not change meanwhile
  explicit Run(trace::Trace&& trace) = delete;
  // These ranks of a job as if they were all of it, with their numbers. `job` must outlive it, too.
  Run(const Run& job, const std::vector<int>& members);
  Run(const Run&) = delete;
  ~Run();
  // The trace of a rank that left one.
  const trace::ParticipantTrace& rank(int number) const;
  const trace::RankEnd* end_of(int number) const;  // null: nobody told how that rank ended

  // What `compute` makes of this run, kept from the first call on. Not for several threads at once.
  template <class T>
  const T& once(T (*compute)(const Run&)) const {
    auto& kept = kept_[reinterpret_cast<void (*)()>(compute)];
    if (!kept) kept = std::make_shared<const T>(compute(*this));
    return *static_cast<const T*>(kept.get());
  }

 private:
  void add(const trace::ParticipantTrace& rank);

  std::vector<const trace::ParticipantTrace*> indexed_;  // by this run
  mutable std::map<void (*)(), std::shared_ptr<const void>> kept_;
};

}  // namespace lockstep::diagnose
