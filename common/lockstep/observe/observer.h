// What the library tells of a job as it runs, to whoever listens. It knows no recorder: record/recorder.h is one
// listener, a program's own may be another. With nobody listening a call costs one branch.
//
//   tell([&](Observer& to) { to.set_epoch(epoch); });
#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/base/value.h>
#include <lockstep/observe/place.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep {

// Rows that a program takes out of a data set.
struct Fetch {
  const std::string& phase;                  // "train", "evaluation"; empty: not known
  const at::Tensor &inputs, &targets;        // all that this rank can reach
  const std::vector<std::int64_t>& all_ids;  // of these, in order; empty: 0, 1, ...
  std::int64_t global_size = 0;              // of the data set as all ranks together have it
  const std::vector<std::int64_t>& ids;      // of the rows that are taken
};

// One rank's job, in the order in which it happens. Derive from it and override what you want to hear. All calls come
// from the thread that trains, except `began` and `loss`, which may come from any. An observer must not throw, call a collective,
// or change what it is shown.
class Observer {
 public:
  virtual ~Observer() = default;

  // This line of the program begins what is told next: a "pass" over data, a "backward", an "update", the "wrapping" of a
  // module, a "checkpoint" or a "collective". The kind is a constant. Where the library calls itself, the
  // place is in its own files.
  virtual void began(const char* /*kind*/, const Place& /*place*/) {}

  // Groups; "0" is the first. `action`: a rank is about to "join" these ranks, has "joined" them, is about to "leave".
  virtual void group(const std::string& /*action*/, const std::string& /*name*/,
                     const std::vector<int>& /*ranks*/) {}

  // A gradient engine is about to take the module over (no collective has run yet); it has taken it over.
  virtual void wrapping(torch::nn::Module& /*module*/) {}
  virtual void wrapped(torch::nn::Module& /*module*/, const std::string& /*engine*/) {}
  // The wrapped module's forward is about to run, before the engine's own collectives; it has run.
  virtual void forward_begins(torch::nn::Module& /*module*/,
                              const std::vector<at::Tensor>& /*inputs*/) {}
  virtual void forward_ended(torch::nn::Module& /*module*/) {}
  // This rank took part in a mean over what the ranks hold: the mean of its own `count` values, and the mean it uses.
  virtual void average(const std::string& /*name*/, const at::Tensor& /*own*/,
                       std::int64_t /*count*/, const at::Tensor& /*used*/) {}
  // Whether the next backwards are reduced.
  virtual void sync_gradients(bool /*wanted*/) {}
  // Each sample's loss, before backward. Outputs and targets are undefined where the program does not give them.
  virtual void loss(const at::Tensor& /*per_sample*/, const at::Tensor& /*outputs*/,
                    const at::Tensor& /*targets*/) {}

  virtual void optimizer_made(torch::optim::Optimizer& /*optimizer*/) {}
  // Gradients are about to be cleared by the "optimizer" or the "module".
  virtual void zero_grad(const std::string& /*by*/) {}
  virtual void update_begins(torch::optim::Optimizer& /*optimizer*/) {}
  virtual void update_ended(torch::optim::Optimizer& /*optimizer*/) {}
  // Inside join(): this rank took part in the others' update and made none itself.
  virtual void update_shadowed() {}
  // The gradients are about to be multiplied by min(1, max_norm / norm).
  virtual void clip(double /*max_norm*/, const at::Tensor& /*norm*/) {}
  // The scaler has looked for infinities. It is about to step, or to skip the step.
  virtual void scaled_step(double /*scale*/, bool /*found_nonfinite*/, bool /*updates*/) {}
  // A schedule has taken `position` of the `length` steps that it was made for (0: not known).
  virtual void schedule(std::int64_t /*position*/, std::int64_t /*length*/) {}

  virtual void set_epoch(std::int64_t /*epoch*/) {}
  // A sampler begins a pass; it deals the ids of a batch; it has dealt all. It may deal every batch before the first is
  // used.
  virtual void pass_begins(std::int64_t /*epoch*/, std::int64_t /*dataset_size*/) {}
  virtual void dealt(const std::vector<std::int64_t>& /*ids*/) {}
  virtual void pass_dealt() {}
  // Rows are about to be taken out of a data set in memory.
  virtual void fetch(const Fetch& /*fetch*/) {}

  // A checkpoint's file is about to be written; it is complete; it was read; it was refused. `from` and `to` are the
  // devices that its tensors were saved from and went to, `keys` the names in the model's state; of a file that was
  // written, the names at the top of the value, if it is a dict.
  virtual void saving(const std::filesystem::path& /*file*/) {}
  virtual void saved(const std::filesystem::path& /*file*/,
                     const std::vector<std::string>& /*keys*/) {}
  virtual void loaded(const std::filesystem::path& /*file*/,
                      const std::vector<std::string>& /*from*/,
                      const std::vector<std::string>& /*to*/,
                      const std::vector<std::string>& /*keys*/) {}
  virtual void refused(const std::filesystem::path& /*file*/) {}
  // A module took a state: a checkpoint's, or another module's, as an average of weights does. `own`: the state
  // holds the module's own tensors, so nothing has changed.
  virtual void state_taken(torch::nn::Module& /*module*/, bool /*own*/) {}

  // This value was written into a checkpoint; an optimizer took a state, as that of Python's state_dict()["state"].
  virtual void state_saved(const ValueOf<at::Tensor>& /*value*/) {}
  virtual void optimizer_took(torch::optim::Optimizer& /*optimizer*/,
                              const ValueOf<at::Tensor>& /*state*/) {}

  // One process drives several devices (train/data_parallel.h), which are known by their positions. A batch was cut into
  // parts of these sizes; the first devices have a copy of the module each, device 0 the module itself; so many of the
  // copies ran; bytes are about to go from one device to another.
  virtual void split(std::int64_t /*devices*/, const std::vector<std::int64_t>& /*sizes*/) {}
  virtual void replicated(const std::vector<std::shared_ptr<torch::nn::Module>>& /*copies*/) {}
  virtual void applied(std::size_t /*copies*/) {}
  virtual void transfer(std::size_t /*from*/, std::size_t /*to*/, std::int64_t /*bytes*/,
                        const std::string& /*what*/) {}

  // The program has the mean of so many values: this rank's, or all ranks' (train/metrics.h).
  virtual void figure(double /*sum*/, double /*count*/) {}
};

// Those that observe() named for this thread; where there are none, those it named for the process. Oldest first.
std::vector<std::shared_ptr<Observer>> observers();
// False until the first observe(). It is never reset.
extern std::atomic<bool> anybody_observes;

template <class Call>
void tell(Call&& call) {
  if (!anybody_observes.load(std::memory_order_relaxed)) return;
  for (const auto& observer : observers()) call(*observer);
}

inline void tell_began(const char* kind, const Place& place) {
  tell([&](Observer& to) { to.began(kind, place); });
}

// From now on `observer` listens to this thread, and to every other one that never had one of its own, for as long as
// somebody holds it. A process that is several ranks has a thread for each.
void observe(const std::shared_ptr<Observer>& observer);

// As long as it lives, nobody hears what its thread does.
class Unobserved {
 public:
  Unobserved();
  ~Unobserved();
  Unobserved(const Unobserved&) = delete;
  Unobserved& operator=(const Unobserved&) = delete;
};

}  // namespace lockstep
