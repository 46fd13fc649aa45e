// Join: training goes on when ranks have unequal numbers of batches. For C++ what
// torch.distributed.algorithms.Join is for Python, and DDP's join().
//
//   DistributedDataParallel<Mlp> model(Mlp(784, 256, 10), group);
//   join({model.engine()}, [&] {
//     for (const auto& batch : mine) {   // as many as this rank has; none is allowed
//       optimizer.zero_grad();
//       cross_entropy(model(batch.inputs), batch.targets).backward();
//       optimizer.step();
//     }
//   });
//
// A rank that has no more batches stays, and takes part in what the others' iterations ask for: zeros
// for the gradients, and nothing changes on it. When the last rank is done, all get that rank's
// parameters and buffers. The price is a small all-reduce or two more in each iteration.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/dist/process_group.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace lockstep {

// Python's arguments, Python's defaults.
struct JoinOptions {
  // true: gradients are divided by all ranks, so a rank without batches counts as one whose gradient is zero.
  // false: by the ranks that still have batches.
  bool divide_by_initial_world_size = true;
  bool enable = true;  // false: every rank has equally many batches, and nothing is asked
  // true: the first rank without a batch ends training on all ranks: join() throws UnevenInputs.
  bool throw_on_early_termination = false;
};

// Thrown on every rank, where the options ask for it: a rank has no more batches and others have.
class UnevenInputs : public Error {
 public:
  using Error::Error;
};

// What can be joined: something with collectives in every iteration. DdpEngine is; so is what you
// derive from it, for collectives of your own.
class Joinable {
 public:
  virtual ~Joinable() = default;

  virtual const ProcessGroupPtr& join_process_group() const = 0;
  // The collectives of one iteration, on a rank that is done, while others are not.
  virtual void main_hook() = 0;
  // Once, when all ranks are done. Some rank is one of the last: those that have shadowed nothing.
  virtual void post_hook(bool is_last_joiner) = 0;
  // Before anything else. Throws UsageError, on all ranks alike, where joining cannot work.
  virtual void check_join() const {}

 protected:
  // Call it before an iteration's first collective. Collective inside join(), on the first joinable;
  // nothing elsewhere. Gives back its work, whose result is the number of ranks that are not done, or
  // null. Throws UnevenInputs where the options ask for it, CollectiveError.
  c10::intrusive_ptr<c10d::Work> notify_join_context();
  // What join() was told; nothing outside of it, and where it is not enabled.
  const std::optional<JoinOptions>& join_options() const { return options_; }
  // join() is over, or an exception has ended it.
  virtual void leave_join() {}

 private:
  friend class JoinScope;
  std::optional<JoinOptions> options_;
  bool is_first_ = false;
};

// Runs `training`, then shadows the other ranks' iterations until all are done. Collective; blocks until
// then, each wait at most the group's timeout. All ranks must pass the same joinables in the same order,
// and the same options. What `training` throws comes out at once: the others run into their timeout.
// Gives back the iterations that this rank has shadowed: 0 on those that were done last.
//
// Limits, with DistributedDataParallel:
//   SyncBatchNorm   has collectives inside forward, which nobody shadows: UsageError. Let ranks without
//                   samples train on empty batches instead, which it takes, or agree on the number of batches
//   static_graph    UsageError: a rank that never ran a batch would reduce its first one in another order
//   find_unused_parameters   a parameter that no rank has used keeps no gradient, as without join(); Python's Join
//                   may give it one of zeros
//   an optimizer that remembers (momentum, Adam): a rank that was done has missed its last steps, and goes
//                   its own way in the next epoch. checkpoint/joined_optimizer.h, as a further joinable
//   other collectives inside `training` (a logged loss) are yours: a Joinable of your own can shadow them
// Throws UsageError, UnevenInputs, CollectiveError.
std::int64_t join(const std::vector<std::reference_wrapper<Joinable>>& joinables,
                  const std::function<void()>& training, const JoinOptions& options = {});

}  // namespace lockstep
