// What a run records. Each rank has one trace: a list of these events in the order they happened.
// trace.md describes every event, its encoding, and who needs it.
//
// An event says what happened, never whether it was right. Each struct lists its fields once, in
// visit(); the writer, the reader and the JSON export all use that list.
#pragma once

#include <lockstep/trace/checkpoint_event.h>
#include <lockstep/trace/ids.h>
#include <lockstep/trace/job_event.h>
#include <lockstep/trace/placement_event.h>
#include <lockstep/trace/setup_event.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace lockstep::trace {

// A tensor in a few numbers: an exact hash, its Euclidean norm, and kSketch fixed random
// projections (signs drawn per element; record/sketch.h). They are linear: of a sum, the sum.
inline constexpr int kSketch = 4;
struct Summary {
  std::uint64_t hash = 0;
  double norm = 0;
  std::vector<double> sketch;  // kSketch values
  template <class V>
  void visit(V& v) {
    v("hash", hash), v("norm", norm), v("sketch", sketch);
  }
};

// What the program says it means to do; empty where it says nothing.
struct Intent {
  static constexpr const char* kName = "intent";
  std::int64_t global_batch = 0;  // samples per update, over all ranks; 0 = not declared
  std::string loss_reduction;     // "mean" (over the global batch), "sum", or ""
  double reference_lr = 0;        // 0 = not declared
  std::int64_t reference_world_size = 0;
  template <class V>
  void visit(V& v) {
    v("global_batch", global_batch), v("loss_reduction", loss_reduction),
        v("reference_lr", reference_lr), v("reference_world_size", reference_world_size);
  }
};

// The parameters a rank is going to train, as it has built them.
struct Model {
  static constexpr const char* kName = "model";
  std::vector<std::string> names;
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<std::string> dtypes;
  template <class V>
  void visit(V& v) {
    v("names", names), v("shapes", shapes), v("dtypes", dtypes);
  }
  bool operator==(const Model&) const = default;
};

// A gradient engine took the parameters over ("distributed_data_parallel", "data_parallel"), or one that leaves each
// rank a part of the model ("fully_sharded", "tensor_parallel", "pipeline", "deepspeed").
struct Engine {
  static constexpr const char* kName = "engine";
  std::string kind;
  std::int64_t parameters = 0;
  template <class V>
  void visit(V& v) {
    v("kind", kind), v("parameters", parameters);
  }
};

// A data set as this rank sees it. Global sample ids are whatever the program calls a sample; where
// they are positions, ids_in_order is the hash of 0..size-1.
struct Dataset {
  static constexpr const char* kName = "dataset";
  std::string phase;                 // "train" or "evaluation"
  std::int64_t size = 0;             // samples this rank can reach
  std::int64_t global_size = 0;      // samples of the whole set, over all ranks
  std::uint64_t ids_in_order = 0;    // hash of the ids in the order this rank indexes them
  std::uint64_t ids_as_set = 0;      // the same without order (sum of the ids' hashes)
  std::uint64_t content_as_set = 0;  // sum of hash(id, bytes of the sample)
  template <class V>
  void visit(V& v) {
    v("phase", phase), v("size", size), v("global_size", global_size),
        v("ids_in_order", ids_in_order), v("ids_as_set", ids_as_set),
        v("content_as_set", content_as_set);
  }
};

// The program told a sampler the epoch.
struct SetEpoch {
  static constexpr const char* kName = "set_epoch";
  std::int64_t epoch = 0;
  template <class V>
  void visit(V& v) {
    v("epoch", epoch);
  }
};

// A pass over a data set begins, before its first sample is drawn; and ends.
struct PassBegin {
  static constexpr const char* kName = "pass_begin";
  std::string phase;
  std::int64_t epoch = 0;  // as the program counts
  template <class V>
  void visit(V& v) {
    v("phase", phase), v("epoch", epoch);
  }
};
struct PassEnd {
  static constexpr const char* kName = "pass_end";
  std::string phase;
  std::int64_t epoch = 0;
  std::int64_t batches = 0;
  template <class V>
  void visit(V& v) {
    v("phase", phase), v("epoch", epoch), v("batches", batches);
  }
};

// One batch was drawn: the global ids of its samples, in order, before the data is fetched.
struct Samples {
  static constexpr const char* kName = "samples";
  std::string phase;
  Ids ids;
  template <class V>
  void visit(V& v) {
    v("phase", phase), v("ids", ids);
  }
};

// A batch was cut into parts for the devices of one process.
struct Split {
  static constexpr const char* kName = "split";
  std::int64_t devices = 0;
  std::vector<std::int64_t> sizes;  // samples per part, in device order
  template <class V>
  void visit(V& v) {
    v("devices", devices), v("sizes", sizes);
  }
};

// Bytes went from one participant's memory to another's, outside a collective.
struct Transfer {
  static constexpr const char* kName = "transfer";
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t bytes = 0;
  std::string what;  // "input", "parameters", "output", "gradients"
  template <class V>
  void visit(V& v) {
    v("from", from), v("to", to), v("bytes", bytes), v("what", what);
  }
};

// The module ran forward, in training or in evaluation mode.
struct Forward {
  static constexpr const char* kName = "forward";
  bool training = true;
  template <class V>
  void visit(V& v) {
    v("training", training);
  }
};

// The loss that backward() starts from, beside the batch it came from.
struct Loss {
  static constexpr const char* kName = "loss";
  double backward_value = 0;  // the scalar backward() is called on
  double sum = 0;             // sum of the samples' own losses, unscaled
  std::int64_t count = 0;     // samples
  template <class V>
  void visit(V& v) {
    v("backward_value", backward_value), v("sum", sum), v("count", count);
  }
};

// One summary per parameter (see Model for the names), in that order.
// LocalGradients: what this rank's backward() produced, summed over the backwards since the last
// update, before any reduction; gradients that were cleared before a later backward are not counted.
// ReducedGradients: .grad just before the update. Parameters: just after it (and once before the first
// step, step -1). A parameter without a gradient has an empty sketch. Buffers: as Parameters, and once
// more just before the first Forward in evaluation mode that follows an update: those that it went by.
struct LocalGradients {
  static constexpr const char* kName = "local_gradients";
  std::int64_t samples = 0;  // behind this gradient; 0 = not known
  std::vector<Summary> values;
  template <class V>
  void visit(V& v) {
    v("samples", samples), v("values", values);
  }
};
struct ReducedGradients {
  static constexpr const char* kName = "reduced_gradients";
  std::vector<Summary> values;
  template <class V>
  void visit(V& v) {
    v("values", values);
  }
};
struct Parameters {
  static constexpr const char* kName = "parameters";
  std::vector<Summary> values;
  template <class V>
  void visit(V& v) {
    v("values", values);
  }
};
// Right before an update, and when the group is left, where the parameters after the last update were recorded: whether
// anything has changed them since then, and to what.
struct BeforeUpdate {
  static constexpr const char* kName = "before_update";
  bool changed = false;
  std::vector<Summary> values;  // empty: as they were recorded last
  template <class V>
  void visit(V& v) {
    v("changed", changed), v("values", values);
  }
};
// Tensors that are not in Model, and that the training uses or keeps: an optimizer's parameters; in Python jobs also
// those of modules beside the model, such as a target network, what is frozen, and buffers. Recorded with Parameters.
struct OutsideParameters {
  static constexpr const char* kName = "outside_parameters";
  std::string holder;  // "optimizers", a module's class, or another name (trace.md)
  std::vector<std::string> names;
  std::vector<Summary> values;
  template <class V>
  void visit(V& v) {
    v("holder", holder), v("names", names), v("values", values);
  }
};
struct Buffers {
  static constexpr const char* kName = "buffers";
  std::vector<std::string> names;
  std::vector<Summary> values;
  template <class V>
  void visit(V& v) {
    v("names", names), v("values", values);
  }
};

// The optimizer stepped.
struct Update {
  static constexpr const char* kName = "update";
  std::vector<double> lr;  // per parameter group
  template <class V>
  void visit(V& v) {
    v("lr", lr);
  }
};

// A figure as this rank's program holds it after whatever reduction it does: mean = sum / count.
struct Metric {
  static constexpr const char* kName = "metric";
  std::string name;  // "accuracy", "loss"
  std::string phase;
  double sum = 0;
  double count = 0;
  template <class V>
  void visit(V& v) {
    v("name", name), v("phase", phase), v("sum", sum), v("count", count);
  }
};

// A mean over what the ranks hold, as one rank took part in it: the mean of its own values, how many
// they are, and the mean it went on with. BatchNorm's mean over the batch is one.
struct Average {
  static constexpr const char* kName = "average";
  std::string name;
  std::int64_t count = 0;
  Summary own;  // no sketch where count is 0
  Summary used;
  template <class V>
  void visit(V& v) {
    v("name", name), v("count", count), v("own", own), v("used", used);
  }
};

// A learning-rate schedule was made, or stepped: how many steps it has taken and how many it was made
// for, both in its own unit. Where it stands beside the updates and the passes tells that unit.
struct Schedule {
  static constexpr const char* kName = "schedule";
  std::int64_t position = 0;
  std::int64_t length = 0;  // 0 = the program does not say
  template <class V>
  void visit(V& v) {
    v("position", position), v("length", length);
  }
};

// The program told its gradient engine whether the backwards to come are to be reduced.
struct SyncGradients {
  static constexpr const char* kName = "sync_gradients";
  bool wanted = true;
  template <class V>
  void visit(V& v) {
    v("wanted", wanted);
  }
};

// A backward of this rank produced a gradient for a parameter (its place in Model), before any
// reduction.
struct GradientArrived {
  static constexpr const char* kName = "gradient_arrived";
  std::int64_t parameter = 0;
  template <class V>
  void visit(V& v) {
    v("parameter", parameter);
  }
};

// The program is about to clear the gradients: whose call does it, how many gradients there are, and
// how many of them are views of another tensor.
struct ZeroGrad {
  static constexpr const char* kName = "zero_grad";
  std::string by;  // "optimizer", "module", "tensor"
  std::int64_t gradients = 0;
  std::int64_t views = 0;
  template <class V>
  void visit(V& v) {
    v("by", by), v("gradients", gradients), v("views", views);
  }
};

// Random numbers were drawn for samples, for their augmentation: which samples, in the order they
// were drawn for, and a hash of each one's numbers.
struct RandomNumbers {
  static constexpr const char* kName = "random_numbers";
  Ids ids;
  std::vector<std::uint64_t> hashes;
  template <class V>
  void visit(V& v) {
    v("ids", ids), v("hashes", hashes);
  }
};

// The gradients, as they are here, are about to be clipped by the norm that the program goes by.
struct Clip {
  static constexpr const char* kName = "clip";
  double max_norm = 0;
  double norm = 0;
  std::vector<Summary> values;
  template <class V>
  void visit(V& v) {
    v("max_norm", max_norm), v("norm", norm), v("values", values);
  }
};

// A step with a scaled loss ended: whether this rank found NaNs, and updates or leaves the step out.
struct ScaledStep {
  static constexpr const char* kName = "scaled_step";
  double scale = 1;
  bool found_nonfinite = false;
  bool updates = true;
  template <class V>
  void visit(V& v) {
    v("scale", scale), v("found_nonfinite", found_nonfinite), v("updates", updates);
  }
};

// The order of this list is the kind's number in a file: append, never reorder.
using Payload =
    std::variant<Intent, Model, Engine, Dataset, SetEpoch, PassBegin, PassEnd, Samples, Split,
                 Transfer, Forward, Loss, LocalGradients, ReducedGradients, Parameters, Buffers,
                 Update, Metric, Collective, Average, Schedule, SyncGradients, GradientArrived,
                 ZeroGrad, RandomNumbers, Clip, ScaledStep, CheckpointFile, TrainingState, Group,
                 Decision, AsyncResult, RankEnd, Attempt, Placement, Device, Shard, Spawn, DataFile,
                 StoreCall, StreamUse, SharedMemory, Configuration, Input, BeforeUpdate,
                 OutsideParameters, Rows, Backward, GradientCleared, Contents, LossDivisors,
                 OtherRows, RecordingEnd, GraphCut, StateTaken, Settings, LayerModes, RandomState,
                 EvaluationInput, Workers, ScheduleTwins, Untrained, OwnTensorsLoaded, AnotherModel,
                 Moving, CheckpointWithoutGradient, LossAgain, OutsideInTraining, EvaluationRows>;

// The number of a kind.
template <class T, std::size_t I = 0>
constexpr std::size_t kind_of() {
  if constexpr (std::is_same_v<std::variant_alternative_t<I, Payload>, T>)
    return I;
  else
    return kind_of<T, I + 1>();
}

const char* name_of(std::size_t kind);  // its kName

}  // namespace lockstep::trace
