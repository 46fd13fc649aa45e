// What the library tells of a job as it runs, to whoever listens. It knows no recorder: record/recorder.h is one
// listener, a program's own may be another. With nobody listening a call costs one branch.
//
//   tell([&](Observer& to) { to.set_epoch(epoch); });
#pragma once

#include <ATen/core/Tensor.h>

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

// One rank's job, in the order in which it happens. All calls but `loss` come from the thread that trains. An observer
// must not throw, call a collective, or change what it is shown.
class Observer {
 public:
  virtual ~Observer() = default;

  // Groups, "0" the first: a rank is about to "join" one of these ranks, has "joined" it, is about to "leave" it.
  virtual void group(const std::string& action, const std::string& name,
                     const std::vector<int>& ranks) = 0;

  // A gradient engine is about to take the module over, before it talks to other ranks; and has.
  virtual void wrapping(torch::nn::Module& module) = 0;
  virtual void wrapped(torch::nn::Module& module, const std::string& engine) = 0;
  // Before a forward of the wrapped module, and its collectives; and after it.
  virtual void forward_begins(torch::nn::Module& module) = 0;
  virtual void forward_ended(torch::nn::Module& module) = 0;
  virtual void sync_gradients(bool wanted) = 0;  // whether the backwards to come are reduced
  // What each sample lost, before backward; and where known the outputs and targets (else undefined).
  virtual void loss(const at::Tensor& per_sample, const at::Tensor& outputs,
                    const at::Tensor& targets) = 0;

  virtual void optimizer_made(torch::optim::Optimizer& optimizer) = 0;
  virtual void zero_grad(
      const std::string& by) = 0;  // is about to clear gradients: "optimizer", "module"
  virtual void update_begins(torch::optim::Optimizer& optimizer) = 0;
  virtual void update_ended(torch::optim::Optimizer& optimizer) = 0;
  // Inside join(), this rank took part in what the others did for an update, and made none itself.
  virtual void update_shadowed() = 0;
  // Is about to multiply the parameters' gradients with min(1, max_norm / norm).
  virtual void clip(double max_norm, const at::Tensor& norm) = 0;
  // Has looked for infinities, and is about to step, or to leave the step out.
  virtual void scaled_step(double scale, bool found_nonfinite, bool updates) = 0;
  // A schedule has taken so many of the steps it was made for (0: not known).
  virtual void schedule(std::int64_t position, std::int64_t length) = 0;

  virtual void set_epoch(std::int64_t epoch) = 0;
  // A sampler deals a pass; then its batches, all at once or one by one; then it has no more.
  virtual void pass_begins(std::int64_t epoch, std::int64_t dataset_size) = 0;
  virtual void dealt(const std::vector<std::int64_t>& ids) = 0;
  virtual void pass_dealt() = 0;
  // Is about to take rows out of a data set in memory.
  virtual void fetch(const Fetch& fetch) = 0;

  // A checkpoint's file is about to be written; is there; was read, with the devices that its tensors come from and
  // went to and the names in the model's state; or was refused.
  virtual void saving(const std::filesystem::path& file) = 0;
  virtual void saved(const std::filesystem::path& file) = 0;
  virtual void loaded(const std::filesystem::path& file, const std::vector<std::string>& from,
                      const std::vector<std::string>& to, const std::vector<std::string>& keys) = 0;
  virtual void refused(const std::filesystem::path& file) = 0;
};

// Who listens to this thread, else to the process: in the order in which they came.
std::vector<std::shared_ptr<Observer>> observers();
extern std::atomic<bool> anybody_observes;  // or did

template <class Call>
void tell(Call&& call) {
  if (!anybody_observes.load(std::memory_order_relaxed)) return;
  for (const auto& observer : observers()) call(*observer);
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
