// Events of how a rank is set up, what it is fed, what its backward() starts from, and which gradients were cleared.
#pragma once

#include <lockstep/trace/ids.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::trace {

// What Settings are of. By name in traces and their JSON.
enum class SettingsOf { model, optimizer, engine, loader, loss, program, constants, settings };
inline constexpr std::array<const char*, 8> kSettingsOf = {
    "model", "optimizer", "engine", "loader", "loss", "program", "constants", "settings"};
inline const char* to_string(SettingsOf of) {
  return kSettingsOf.at(static_cast<std::size_t>(of));
}
// Whether there is one of this name.
inline bool from_string(const std::string& name, SettingsOf& of) {
  const auto found = std::find(kSettingsOf.begin(), kSettingsOf.end(), name);
  if (found == kSettingsOf.end()) return false;
  of = static_cast<SettingsOf>(found - kSettingsOf.begin());
  return true;
}

// What a program chooses beside tensors and ranks should agree on, as text: the options of its model or optimizer;
// trace.md has all of them.
struct Settings {
  static constexpr const char* kName = "settings";
  SettingsOf of = SettingsOf::model;
  std::vector<std::string> keys;
  std::vector<std::string> values;
  template <class V>
  void visit(V& v) {
    v("of", of), v("keys", keys), v("values", values);
  }
  bool operator==(const Settings&) const = default;
};

// A layer that keeps running statistics: the places of its running mean in Buffers and of its weight in Model, and
// whether it was in training mode before the first step.
struct LayerMode {
  std::int64_t buffer = 0;
  std::int64_t parameter = 0;
  bool training = true;
  template <class V>
  void visit(V& v) {
    v("buffer", buffer), v("parameter", parameter), v("training", training);
  }
  bool operator==(const LayerMode&) const = default;
};
struct LayerModes {
  static constexpr const char* kName = "layer_modes";
  std::vector<LayerMode> layers;
  template <class V>
  void visit(V& v) {
    v("layers", layers);
  }
  bool operator==(const LayerModes&) const = default;
};

// The states of the random number generators, a hash of each: torch's of the CPU and of the model's device, and in a
// Python job `random`'s and NumPy's global one.
struct RandomState {
  static constexpr const char* kName = "random_state";
  std::vector<std::string> generators;  // by device, or by the name of their module
  std::vector<std::uint64_t> hashes;
  template <class V>
  void visit(V& v) {
    v("generators", generators), v("hashes", hashes);
  }
};

// What a forward of the model without gradients was given: how many samples, and the sum of their hashes, which is
// equal for equal samples in any order.
struct EvaluationInput {
  static constexpr const char* kName = "evaluation_input";
  std::int64_t samples = 0;
  std::uint64_t content = 0;
  template <class V>
  void visit(V& v) {
    v("samples", samples), v("content", content);
  }
};

// As Rows, of a forward of the model without gradients.
struct EvaluationRows {
  static constexpr const char* kName = "evaluation_rows";
  Ids hashes;
  template <class V>
  void visit(V& v) {
    v("hashes", hashes);
  }
};

// A train loader's workers begin a pass: what they seed their generators with.
struct Workers {
  static constexpr const char* kName = "workers";
  std::int64_t base_seed = 0;
  template <class V>
  void visit(V& v) {
    v("base_seed", base_seed);
  }
  bool operator==(const Workers&) const = default;
};

// Several schedules of one class step one optimizer's rates, while another optimizer that trains has none.
struct ScheduleTwins {
  static constexpr const char* kName = "schedule_twins";
  std::string schedule;  // the class
  std::int64_t count = 0;
  template <class V>
  void visit(V& v) {
    v("schedule", schedule), v("count", count);
  }
};

// Parameters that losses lead to, that no engine and no optimizer is known to hold, and that have not changed: the
// shape of each, and the first step in which a loss led to it.
struct UntrainedLeaf {
  std::vector<std::int64_t> shape;
  std::int64_t step = 0;
  template <class V>
  void visit(V& v) {
    v("shape", shape), v("step", step);
  }
};
struct Untrained {
  static constexpr const char* kName = "untrained";
  std::vector<UntrainedLeaf> leaves;
  template <class V>
  void visit(V& v) {
    v("leaves", leaves);
  }
};

// After an update a model's load_state_dict() was given the model's own tensors.
struct OwnTensorsLoaded {
  static constexpr const char* kName = "own_tensors_loaded";
  std::string module;  // its class
  template <class V>
  void visit(V& v) {
    v("module", module);
  }
};

// The Model that follows has no parameter of the one before.
struct AnotherModel {
  static constexpr const char* kName = "another_model";
  template <class V>
  void visit(V&) {}
};

// What a program computes with beside the model, by name: what it was before the first update, and is now. A number as
// text, of a tensor a hash.
struct MovingValue {
  std::string name;
  std::string first;
  std::string now;
  template <class V>
  void visit(V& v) {
    v("name", name), v("first", first), v("now", now);
  }
  bool operator==(const MovingValue&) const = default;
};
struct Moving {
  static constexpr const char* kName = "moving";
  std::vector<MovingValue> values;
  template <class V>
  void visit(V& v) {
    v("values", values);
  }
  bool operator==(const Moving&) const = default;
};

// A reentrant activation checkpoint was given no input that requires a gradient: what is inside of it gets none.
struct CheckpointWithoutGradient {
  static constexpr const char* kName = "checkpoint_without_gradient";
  template <class V>
  void visit(V&) {}
};

// Of old traces alone: what the events above say, told apart by the text `of`. old_configuration.h makes them of it.
struct Configuration {
  static constexpr const char* kName = "configuration";
  std::string of;
  std::vector<std::string> keys;
  std::vector<std::string> values;
  template <class V>
  void visit(V& v) {
    v("of", of), v("keys", keys), v("values", values);
  }
};

// One tensor that a training forward was given, or that a loss compared with.
struct Input {
  static constexpr const char* kName = "input";
  // Its place among those of this forward; of the second module that a gradient engine wrapped from 100 on, of the third
  // from 200. -1, -2: the targets of the loss, as its graph tells.
  std::int64_t index = 0;
  static constexpr std::int64_t kOfAnother = 100;
  std::vector<std::int64_t> shape;
  std::string dtype;
  // Of its numbers; of more than 2^20, of evenly spaced ones. 0 where it has none.
  double mean = 0, deviation = 0, least = 0, greatest = 0;
  template <class V>
  void visit(V& v) {
    v("index", index), v("shape", shape), v("dtype", dtype), v("mean", mean),
        v("deviation", deviation), v("least", least), v("greatest", greatest);
  }
};

// The samples that a training forward was given: a hash of each. Of a sample of many numbers some are hashed; of many
// samples some are told, the same ones on every rank.
struct Rows {
  static constexpr const char* kName = "rows";
  static constexpr std::size_t kMost =
      1 << 16;  // that a rank tells of a module, and a forward's more
  Ids hashes;
  template <class V>
  void visit(V& v) {
    v("hashes", hashes);
  }
};

// As Rows, of a module beside the recorded model that a gradient engine has wrapped, too, such as a GAN's critic.
struct OtherRows {
  static constexpr const char* kName = "other_rows";
  std::int64_t module = 1;  // the first of them is 1
  Ids hashes;
  template <class V>
  void visit(V& v) {
    v("module", module), v("hashes", hashes);
  }
};

// What the program's loader gave for some positions of a batch to train on, targets included: a hash of each. Of a large
// data set some positions are told, the same ones on every rank.
struct Contents {
  static constexpr const char* kName = "contents";
  Ids ids;
  Ids hashes;
  template <class V>
  void visit(V& v) {
    v("ids", ids), v("hashes", hashes);
  }
};

// The number that a backward() starts from, in a step that has no Loss.
struct Backward {
  static constexpr const char* kName = "backward";
  double value = 0;
  template <class V>
  void visit(V& v) {
    v("value", value);
  }
};

// What each term of the loss that a backward() starts from was divided by, as the loss's graph tells: a mean of 8 numbers
// by 8. In the terms' order. A GradScaler's factor is still in it: that mean times 1024 gives 8 / 1024.
struct LossDivisors {
  static constexpr const char* kName = "loss_divisors";
  std::vector<double> values;
  template <class V>
  void visit(V& v) {
    v("values", values);
  }
};

// A backward starts from a loss that was computed from what an all-reduce overwrote: a tensor of several numbers that
// require a gradient. Autograd does not see the sum, and gives each rank the gradient of its own numbers.
struct GraphCut {
  static constexpr const char* kName = "graph_cut";
  std::string op;
  std::int64_t elements = 0;
  template <class V>
  void visit(V& v) {
    v("op", op), v("elements", elements);
  }
};

// A parameter's gradient (its place in Model) of this update's earlier backwards was cleared by zero_grad() before the
// backward that brings the next one.
struct GradientCleared {
  static constexpr const char* kName = "gradient_cleared";
  std::int64_t parameter = 0;
  template <class V>
  void visit(V& v) {
    v("parameter", parameter);
  }
};

// A module that no optimizer trains, such as a teacher, is called by the training while it is in training mode and has
// layers that draw, or that keep statistics.
struct OutsideInTraining {
  static constexpr const char* kName = "outside_in_training";
  std::string holder;
  template <class V>
  void visit(V& v) {
    v("holder", holder);
  }
};

// A backward starts from a loss that contains one from which an earlier backward of this update started, and whose
// gradients are still there: they are added once more.
struct LossAgain {
  static constexpr const char* kName = "loss_again";
  std::int64_t earlier = 0;  // such backwards
  template <class V>
  void visit(V& v) {
    v("earlier", earlier);
  }
};

}  // namespace lockstep::trace
