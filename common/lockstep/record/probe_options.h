// At which steps values (gradients, parameters, buffers) are recorded.
#pragma once

#include <cstdint>

namespace lockstep::record {

// Every `every`-th step from `from` to `to`; 0: none.
struct ProbeStretch {
  std::int64_t every = 0;
  std::int64_t from = 0, to = INT64_MAX;
};

// What LOCKSTEP_EVERY, LOCKSTEP_FROM and LOCKSTEP_TO say, which `lockstep watch --every K --from STEP --to STEP` sets; the
// last two may be unset. Throws UsageError where they say something else.
ProbeStretch probe_stretch_from_environment();

struct ProbeOptions {
  // Value probes (gradients, parameters, buffers) run on steps 0 .. first-1, then at growing distances (powers
  // of two) up to `every`, then on every `every`-th (0: none after the first). What they cost is in
  // reports/results.
  std::int64_t first = 5;
  std::int64_t every = 64;
  ProbeStretch also = {};  // beside those, as around a difference that another run has shown
  // Whether attach() hooks the parameters. A C++ hook takes the place of Python's on the same tensor: there the caller
  // tells each local_gradient() itself.
  bool hooks = true;

  bool probes(std::int64_t step) const;
};

// Those of a run: also the first ones of a model that comes later, and of one whose parameters are frozen or thawed.
class ProbedSteps {
 public:
  explicit ProbedSteps(const ProbeOptions& options) : options_(options) {}
  bool has(std::int64_t step) const;
  void begin_again(std::int64_t step);

 private:
  ProbeOptions options_;
  std::int64_t since_ = 0;
  int begun_ = 0;
};

}  // namespace lockstep::record
