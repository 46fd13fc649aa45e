// What a training program tells the trace: calls beside its own steps, and hooks on its parameters.
//
//   Probes probes(writer);                      // a null writer: every call does nothing
//   probes.attach(*module);                     // leaf hooks for local gradients
//   probes.start();
//   for each epoch:
//     probes.set_epoch(e) beside sampler.set_epoch(e); probes.pass_begin("train", e);
//     for each batch:
//       probes.samples("train", ids); forward; probes.loss(loss, per_sample); backward;
//       probes.gradients_ready(); optimizer.step(); probes.updated(optimizer);
//     probes.pass_end("train", e, batches);
//
// Nothing here is collective, and no probe changes what the program computes. The hooks, local_gradient() and tell() may
// run on any thread; every other call belongs to the thread that trains.
#pragma once

#include <lockstep/base/value.h>
#include <lockstep/dist/process_group.h>
#include <lockstep/trace/writer.h>
#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::record {

// ---- at which steps values (gradients, parameters, buffers) are recorded ----

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

// ---- the probes ----

// Where a Recorder (record/recorder.h) listens with the same writer, it leaves the telling to them.
class Probes {
 public:
  explicit Probes(std::shared_ptr<trace::Writer> writer, const ProbeOptions& options = {});
  ~Probes();
  Probes(const Probes&) = delete;
  Probes& operator=(const Probes&) = delete;

  bool looks_at_values() const;  // in this step

  void intent(const trace::Intent& intent);

  // Records Model and the modules' Settings, where they have changed. With ProbeOptions::hooks it hooks every
  // parameter that requires grad: what backward() produces on this rank is recorded as it arrives, and summed as the local
  // gradient. Call it before or after DDP takes the module
  // over. What was cleared after a zero_grad(), before another backward, is left out. It replaces an earlier attach. The
  // probes hold on to the parameters and buffers there are now: attach again after a module has got new ones.
  void attach(torch::nn::Module& module);
  // The program is about to swap these tensors' contents, and whoever holds one would be in its way.
  void let_go(const std::vector<at::Tensor>& tensors);
  void engine(const std::string& kind);  // a gradient engine took the attached module over
  // The attached module's parameters (and buffers) as they are: call it once, right before the
  // first step.
  void start();

  // A parameter that the training uses and that attach() was not given, such as a target network's. From now on it is
  // recorded with the others, once for each holder.
  void outside(const std::string& holder, const std::string& name, const at::Tensor& parameter);

  // `inputs` and `targets` hold the samples this rank can reach, `ids` their global ids in index
  // order.
  void dataset(const std::string& phase, const at::Tensor& inputs, const at::Tensor& targets,
               const std::vector<std::int64_t>& ids, std::int64_t global_size);
  void set_epoch(std::int64_t epoch);
  void pass_begin(const std::string& phase, std::int64_t epoch);
  void samples(const std::string& phase, const std::vector<std::int64_t>& ids);
  void pass_end(const std::string& phase, std::int64_t epoch, std::int64_t batches);

  // What backward() produced for one of the attached parameters; on any thread. Others are left out, and so are those of
  // a step whose gradients nobody looks at, which need not be told.
  bool looks_at_gradients() const;
  void local_gradient(const at::TensorImpl* parameter, const at::Tensor& gradient);

  // Before a backward. In a step of very many, as where nobody tells the updates, values are not recorded any further.
  void backward();
  // Before the module runs in evaluation mode: the first time after an update records the buffers, and what `holder`
  // holds outside of the module.
  void evaluates(const std::string& holder = "");
  // After the module ran; in evaluation mode as evaluates(), too.
  void forward(bool training);
  // What the module is about to be given, or was: the tensors' shapes and dtypes, and what their numbers are like.
  // Of another module, such as a GAN's critic: its number, from 1.
  void inputs(const std::vector<at::Tensor>& inputs, std::int64_t module = 0);
  // The scalar backward() will be called on, and the samples' own unscaled losses ([n], or any
  // shape whose sum and count are theirs).
  void loss(const at::Tensor& backward_loss, const at::Tensor& per_sample);
  void split(std::int64_t devices, const std::vector<std::int64_t>& sizes);
  void transfer(std::int64_t from, std::int64_t to, std::int64_t bytes, const std::string& what);

  // Beside the call that tells the gradient engine whether the backwards to come are to be reduced.
  void sync_gradients(bool wanted);
  // Right before the attached module's gradients are cleared by a call of `by`: "optimizer",
  // "module", or "tensor" where each gradient is set to zero in place. It may be a call that clears another module's.
  void zero_grad(const std::string& by);
  // After backward and every reduction, before the optimizer. Also tells whether anything has changed the parameters
  // since the last update, if that one's were recorded.
  void gradients_ready();
  // Random generators beside torch's that the program may draw from, and hashes of their states. To be told right before
  // updated(), where it looks at them.
  bool looks_at_generators() const;
  void generators(const std::map<std::string, std::uint64_t>& hashes);
  // After it: the learning rates, parameters and buffers, and once the optimizer's Settings. The step advances;
  // where a Recorder listens, also with each update of the others that join() takes this rank through. On a step that
  // is not probed, the parameters are recorded later, at pass_end("train"), forward(false), a checkpoint's
  // "save_begin", attach(), flush() or the end of these probes, if no other update comes before.
  void updated(const torch::optim::Optimizer& optimizer);
  // join() took this rank through an update of the others: its parameters may be theirs now. The step advances.
  void update_shadowed();
  void made(const torch::optim::Optimizer& optimizer);  // an earlier one may have had its address
  // After an update of which only the parameters tell. What was reduced is not known any more.
  void updated_unseen();
  void flush();
  // The training is over: as flush(), and whether anything has changed the parameters since the last update.
  void ends();
  // A collective begins, outside of a backward.
  void collective_begins(const trace::Collective& call, c10::ArrayRef<at::Tensor> tensors = {});
  void metric(const std::string& name, const std::string& phase, double sum, double count);
  // A learning-rate schedule, when it is made and after each step(): the steps it has taken, and those
  // it was made for, in its own unit (0: not known).
  void schedule(std::int64_t position, std::int64_t length);
  // Row i of `numbers` was drawn for the sample ids[i]. Before the numbers change, if they do.
  void random_numbers(const std::vector<std::int64_t>& ids, const at::Tensor& numbers);
  // Right before the gradients are multiplied with min(1, max_norm / norm).
  void clip(double max_norm, double norm);
  // Where the loss is scaled: at the end of a step, before updated(), which is not called where the step
  // `updates` nothing. The gradients of such a step are recorded, in the first 64 steps also where it is not probed.
  void scaled_step(double scale, bool found_nonfinite, bool updates);
  // Right before a checkpoint's file is written, once it is, and once it was read or refused. The
  // caller fills in what it knows; `action`, `file` and `content` are filled in here.
  void checkpoint_file(const std::string& action, const std::filesystem::path& file,
                       trace::CheckpointFile what);
  void checkpoint_file(const trace::CheckpointFile& what);  // all is filled in
  // The parts of the training's state, by name, on every rank: once a checkpoint is "saved", and once
  // the rank has "resumed" from one, before it goes on.
  void training_state(const std::string& moment, const ValueOf<at::Tensor>::Dict& parts);
  // A mean over what the ranks hold: that of this rank's own `count` values, and the one used.
  void average(const std::string& name, const at::Tensor& own, std::int64_t count,
               const at::Tensor& used);

  // The number by which the program decides what it does next; of "stop": whether its training ends.
  void decision(const std::string& name, std::int64_t value);
  // The result of an operation that runs beside the program, as the program has "used" it, and once it
  // has "waited" for the operation.
  void async_result(const std::string& name, const std::string& moment, const at::Tensor& result);

  // For groups and collectives that are none of c10d's, such as raw NCCL's: what record::observe does for those. A
  // collective is entered with its group and its number there, and left, from any thread, when it is done or has failed.
  std::uint64_t enter(const trace::Collective& collective);
  void leave(std::uint64_t entered, bool failed = false);

  // An event of which the program knows all there is: a group, or one of trace/placement_event.h. A placement is told
  // once, and again where the threads change.
  void tell(const trace::Payload& event);
  // Beside the write and the read of a file of the data set: "write_begin", "write_end", "read" (and whether
  // it was whole).
  void data_file(const std::string& action, const std::filesystem::path& file,
                 bool accepted = true);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// One tensor as numbers: hash of its bytes, norm, projections; accumulated in float64. Any dtype,
// layout and device; a complex number counts as two. Copies nothing of a float32 or float64 tensor on the CPU that is
// contiguous, of others 2^18 numbers at a time.
trace::Summary summarize(const at::Tensor& tensor);

// `action`, `file` and `content` of a checkpoint's file, and the state whose parts these are. They hash all bytes, which
// may be gigabytes.
trace::CheckpointFile checkpoint_file_of(const std::string& action,
                                         const std::filesystem::path& file);
trace::TrainingState training_state_of(const std::string& moment,
                                       const ValueOf<at::Tensor>::Dict& parts);

// This process: its machine, as booted (containers of one machine are one node), where the launcher's
// environment places it (local rank 0 of 1 without a launcher), the processors it may use, torch's
// threads. Throws UsageError as launch::placement_from_environment does.
trace::Placement placement_of_this_process();
// Nothing where the program has set a part of a launcher's variables itself, as Lightning does.
void record_placement(trace::Writer& writer);

// For InitOptions::on_store: records what it is told.
std::function<void(const StoreOpening&)> tell_of_store(std::shared_ptr<trace::Writer> writer);

}  // namespace lockstep::record
