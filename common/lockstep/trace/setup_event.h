// Events of how a rank is set up, what it is fed, what its backward() starts from, and which gradients were cleared.
#pragma once

#include <lockstep/trace/ids.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::trace {

// What a program chooses beside tensors, as text: the options of its "model" or "optimizer", or the modes of the layers
// that keep running "statistics"; trace.md has all of them. Also hashes: of the generators' states after an update
// ("randomness"), and of what a forward without gradients was given ("evaluation").
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

}  // namespace lockstep::trace
