// Sources: the `defaults` dicts and the state entries of torch/optim/*.py of 2.11.
#include <lockstep/base/error.h>
#include <lockstep/checkpoint/optimizer_formats.h>
#include <lockstep/train/adam.h>
#include <torch/torch.h>

#include <sstream>
#include <tuple>

namespace lockstep::checkpoint {
namespace {

namespace optim = torch::optim;

// Each optimizer lists its fields once, to a writer or a reader.
class OptionsWriter {
 public:
  Value::Dict entries;

  template <class T>
  void operator()(const char* name, const T& value) {
    entries[name] = value;
  }
  void operator()(const char* name, const std::tuple<double, double>& pair) {
    entries[name] = Value::Tuple{{std::get<0>(pair), std::get<1>(pair)}};
  }
  // What Python has and C++ has not: must be `value`, or only says how to compute.
  void always(const char* name, bool value) { entries[name] = value; }
  void way_to_compute(const char* name, const Value& usual) { entries[name] = usual; }
};

class OptionsReader {
 public:
  explicit OptionsReader(const Value::Dict& entries) : entries_(entries) {}

  void operator()(const char* name, double& value) {
    read(name, [&](const Value& found) { value = number(found); });
  }
  void operator()(const char* name, bool& value) {
    read(name, [&](const Value& found) { value = found.as_bool(); });
  }
  void operator()(const char* name, std::tuple<double, double>& pair) {
    read(name, [&](const Value& found) {
      const auto& items = found.as_list();
      if (items.size() != 2) throw Error("expected two numbers");
      pair = {number(items[0]), number(items[1])};
    });
  }
  void always(const char* name, bool value) {
    read(name, [&](const Value& found) {
      if (found.as_bool() != value)
        throw Error(std::string("is ") + (value ? "False" : "True") +
                    ", which this optimizer cannot be");
    });
  }
  void way_to_compute(const char*, const Value&) {}

 private:
  template <class Take>
  void read(const char* name, const Take& take) {
    const auto* found = entries_.find(name);
    if (found == nullptr) return;  // an older file: the option stays as it is
    try {
      take(*found);
    } catch (const Error& error) {
      throw Error(std::string("option \"") + name + "\": " + error.what());
    }
  }
  static double number(const Value& value) {  // an lr may be a tensor
    if (value.is_tensor() && value.as_tensor().numel() == 1)
      return value.as_tensor().item<double>();
    return value.as_double();
  }
  const Value::Dict& entries_;
};

class StateWriter {
 public:
  Value::Dict entries;
  // Python keeps a float tensor, LibTorch an integer.
  void step(std::int64_t steps) { entries["step"] = torch::tensor(static_cast<float>(steps)); }
  void step(const at::Tensor& steps) { entries["step"] = steps.clone(); }
  void operator()(const char* name, const at::Tensor& tensor) { optional(name, tensor); }
  void optional(const char* name, const at::Tensor& tensor) {
    if (tensor.defined()) entries[name] = tensor;
  }
};

class StateReader {
 public:
  StateReader(const at::Tensor& parameter, const Value::Dict& entries)
      : parameter_(parameter), entries_(entries) {}

  void step(std::int64_t& steps) { steps = static_cast<std::int64_t>(saved_step()); }
  void step(at::Tensor& steps) { steps = torch::tensor(static_cast<float>(saved_step())); }
  void operator()(const char* name, at::Tensor& tensor) {
    optional(name, tensor);
    if (!tensor.defined()) throw Error(std::string("\"") + name + "\" is missing");
  }
  void optional(const char* name, at::Tensor& tensor) {
    const auto* found = entries_.find(name);
    if (found == nullptr || found->is_none()) return;
    const auto& saved = found->as_tensor();
    if (saved.sizes() != parameter_.sizes()) {
      std::ostringstream text;
      text << "\"" << name << "\" has the sizes " << saved.sizes() << ", its parameter "
           << parameter_.sizes();
      throw Error(text.str());
    }
    const auto type =
        parameter_.is_floating_point() ? parameter_.scalar_type() : saved.scalar_type();
    tensor = saved.detach().to(parameter_.device(), type, /*non_blocking=*/false, /*copy=*/true);
  }

 private:
  double saved_step() const {
    const auto& saved = entries_.at("step");
    if (!saved.is_tensor()) return saved.as_double();  // before torch 1.12
    if (saved.as_tensor().numel() != 1) throw Error("\"step\" is not one number");
    return saved.as_tensor().item<double>();
  }
  const at::Tensor& parameter_;
  const Value::Dict& entries_;
};

struct Sgd {
  using Options = optim::SGDOptions;
  using State = optim::SGDParamState;
  static void options(Options& o, auto& field) {
    field("lr", o.lr());
    field("momentum", o.momentum());
    field("dampening", o.dampening());
    field("weight_decay", o.weight_decay());
    field("nesterov", o.nesterov());
    field.always("maximize", false);
    field.way_to_compute("foreach", {});
    field.way_to_compute("differentiable", false);
    field.way_to_compute("fused", {});
  }
  static void state(State& s, auto& field) {
    field.optional("momentum_buffer", s.momentum_buffer());
  }
};

template <class AdamOptions, class AdamState, bool kDecoupled>
struct LibtorchAdam {
  using Options = AdamOptions;
  using State = AdamState;
  static void options(Options& o, auto& field) {
    field("lr", o.lr());
    field("betas", o.betas());
    field("eps", o.eps());
    field("weight_decay", o.weight_decay());
    field("amsgrad", o.amsgrad());
    field.always("maximize", false);
    field.way_to_compute("foreach", {});
    field.way_to_compute("capturable", false);
    field.way_to_compute("differentiable", false);
    field.way_to_compute("fused", {});
    field.always("decoupled_weight_decay", kDecoupled);
  }
  static void state(State& s, auto& field) {
    field.step(s.step());
    field("exp_avg", s.exp_avg());
    field("exp_avg_sq", s.exp_avg_sq());
    field.optional("max_exp_avg_sq", s.max_exp_avg_sq());
  }
};

template <bool kIsAdamW>
struct OwnAdam {
  using Options = AdamOptions;
  using State = AdamParamState;
  static void options(Options& o, auto& field) {
    field("lr", o.lr());
    field("betas", o.betas());
    field("eps", o.eps());
    field("weight_decay", o.weight_decay());
    field("amsgrad", o.amsgrad());
    field("maximize", o.maximize());
    field.way_to_compute("foreach", {});
    field.way_to_compute("capturable", false);
    field.way_to_compute("differentiable", false);
    field.way_to_compute("fused", {});
    field("decoupled_weight_decay", o.decoupled_weight_decay());
    if (kIsAdamW) o.decoupled_weight_decay(true);  // whatever a file says, as in Python
  }
  static void state(State& s, auto& field) {
    field.step(s.step);
    field("exp_avg", s.exp_avg);
    field("exp_avg_sq", s.exp_avg_sq);
    field.optional("max_exp_avg_sq", s.max_exp_avg_sq);
  }
};

struct Rmsprop {
  using Options = optim::RMSpropOptions;
  using State = optim::RMSpropParamState;
  static void options(Options& o, auto& field) {
    field("lr", o.lr());
    field("momentum", o.momentum());
    field("alpha", o.alpha());
    field("eps", o.eps());
    field("centered", o.centered());
    field("weight_decay", o.weight_decay());
    field.way_to_compute("capturable", false);
    field.way_to_compute("foreach", {});
    field.always("maximize", false);
    field.way_to_compute("differentiable", false);
  }
  static void state(State& s, auto& field) {
    field.step(s.step());
    field("square_avg", s.square_avg());
    field.optional("momentum_buffer", s.momentum_buffer());
    field.optional("grad_avg", s.grad_avg());
  }
};

struct Adagrad {
  using Options = optim::AdagradOptions;
  using State = optim::AdagradParamState;
  static void options(Options& o, auto& field) {
    field("lr", o.lr());
    field("lr_decay", o.lr_decay());
    field("eps", o.eps());
    field("weight_decay", o.weight_decay());
    field("initial_accumulator_value", o.initial_accumulator_value());
    field.way_to_compute("foreach", {});
    field.always("maximize", false);
    field.way_to_compute("differentiable", false);
    field.way_to_compute("fused", {});
  }
  static void state(State& s, auto& field) {
    field.step(s.step());
    field("sum", s.sum());
  }
};

template <class Fields>
OptimizerFormat make(const char* name, bool state_from_the_start = false) {
  using Options = typename Fields::Options;
  using State = typename Fields::State;
  return {name,
          state_from_the_start,
          [](optim::OptimizerOptions& options) {
            OptionsWriter writer;
            Fields::options(static_cast<Options&>(options), writer);
            return writer.entries;
          },
          [](optim::OptimizerOptions& options, const Value::Dict& from) {
            OptionsReader reader(from);
            Fields::options(static_cast<Options&>(options), reader);
          },
          [](optim::OptimizerParamState& state) {
            StateWriter writer;
            Fields::state(static_cast<State&>(state), writer);
            return writer.entries;
          },
          [](const at::Tensor& parameter,
             const Value::Dict& from) -> std::unique_ptr<optim::OptimizerParamState> {
            auto state = std::make_unique<State>();
            StateReader reader(parameter, from);
            Fields::state(*state, reader);
            return state;
          }};
}

template <class T>
bool is(const optim::Optimizer& optimizer) {
  return dynamic_cast<const T*>(&optimizer) != nullptr;
}

}  // namespace

const OptimizerFormat& format_of(const optim::Optimizer& optimizer) {
  static const auto sgd = make<Sgd>("SGD");
  static const auto adam =
      make<LibtorchAdam<optim::AdamOptions, optim::AdamParamState, false>>("Adam");
  static const auto adamw =
      make<LibtorchAdam<optim::AdamWOptions, optim::AdamWParamState, true>>("AdamW");
  static const auto own_adam = make<OwnAdam<false>>("Adam");
  static const auto own_adamw = make<OwnAdam<true>>("AdamW");
  static const auto rmsprop = make<Rmsprop>("RMSprop");
  static const auto adagrad = make<Adagrad>("Adagrad", /*state_from_the_start=*/true);
  if (is<optim::SGD>(optimizer)) return sgd;
  if (is<optim::Adam>(optimizer)) return adam;
  if (is<optim::AdamW>(optimizer)) return adamw;
  if (is<lockstep::AdamW>(optimizer)) return own_adamw;  // first: it is a lockstep::Adam, too
  if (is<lockstep::Adam>(optimizer)) return own_adam;
  if (is<optim::RMSprop>(optimizer)) return rmsprop;
  if (is<optim::Adagrad>(optimizer)) return adagrad;
  throw UnavailableError(
      "this optimizer's state cannot be saved; those that can: SGD, Adam, AdamW, RMSprop, Adagrad");
}

}  // namespace lockstep::checkpoint
