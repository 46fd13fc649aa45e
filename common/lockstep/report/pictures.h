// What a run looked like, from its trace: how far the replicas were apart, when each rank was inside of which
// collective, who drew which samples. As much of it as a page can show.
#pragma once

#include <lockstep/trace/reader.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::report {

struct Pictures {
  static constexpr std::size_t kMostPoints = 100;  // of what is drawn by step
  static constexpr std::size_t kMostCalls = 40;    // of a rank
  static constexpr std::size_t kMostIds = 512;     // of all ranks and passes

  // The replicas' parameters after an update (-1: before the first), as the detectors compare them. None
  // where there are no replicas, or a rank left no trace.
  struct Apart {
    std::int64_t step = -1;
    double distance = 0;  // relative, the largest from rank 0's; NaN: not all values are finite
  };
  // A collective of a rank's last attempt, point-to-point operations left out.
  struct Call {
    int rank = 0;
    std::int64_t sequence = 0;
    std::string operation, group;
    double entered_s = 0;          // since the first of the calls shown was entered
    std::optional<double> left_s;  // nothing: it never left
    bool failed = false;
  };
  // Where ranks called different collectives, or not all that should have come did: the first in time.
  struct Difference {
    std::string group;
    std::int64_t sequence = 0;
    std::vector<int> ranks;  // the odd ones out, or those to blame
  };
  // One pass of training: the ids that each rank drew, in the order drawn, finished or not.
  struct Pass {
    std::int64_t epoch = 0;    // as the program counts
    std::int64_t samples = 0;  // of the whole data set; 0 = not recorded
    std::int64_t every = 1;    // of the ids in ascending order, each so many; 1 = all
    std::vector<std::vector<std::int64_t>> drawn;  // by rank
  };

  std::vector<Apart> divergence;
  double tolerance = 0;  // of it: what two ranks may differ by in rounding
  // By rank, in the order entered: a rank's last, or those around the difference where that was earlier.
  std::vector<Call> calls;
  bool truncated = false;  // there were more
  std::optional<Difference> first_difference;
  std::vector<Pass> passes;  // the first two
};

Pictures pictures_of(const trace::Trace& trace);

// Of so many points, which are shown: each so many-th, that they are kMostPoints at most.
std::size_t every_shown(std::size_t points);

}  // namespace lockstep::report
