// Lesson 07, part "loading": where tensors go when they are loaded, and under which names.
//
// Concept:  a file records the device of every tensor, and the name that the saved module had for
//           it. map_location says where the tensors go instead; the names must be the model's own.
// Symptom:  all ranks load to rank 0's device, which can run out of memory; the optimizer's state
//           is on another device than the model, and the first step throws; the model has no
//           "module.fc1.weight".
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>

#include "run.h"

namespace {

using namespace checkpoint_lesson;

// Rank r trains on GPU r. Without GPUs this is only a name, and the lesson records where a tensor
// would have gone.
std::string gpu(int rank) {
  return "cuda:" + std::to_string(rank);
}
std::string gpu_of(const RankContext& context) {
  return context.device().is_cuda() ? context.device().str() : gpu(context.rank());
}

// A wrapper around a model, as Python's DDP is one: its names begin with "module.".
struct WrapperImpl : torch::nn::Module {
  explicit WrapperImpl(const Mlp& model) { register_module("module", model); }
};

Value::Dict to_save(RankContext& context, Run& run, const Fault& fault) {
  Value::Dict checkpoint{{"optimizer", state_dict(run.optimizer)},
                         {"scheduler", run.scheduler.state_dict()},
                         {"rng_state", all_rng_states(context)}};
  if (fault("module-prefix") || fault("near-miss-wrapped-both-ways")) {
    checkpoint["model"] = state_dict(WrapperImpl(run.model));
  } else {
    checkpoint["model"] = state_dict(*run.model);
  }
  return checkpoint;
}

Devices devices_of(RankContext& context, const Fault& fault) {
  const auto mine = gpu_of(context);
  if (fault("load-without-map-location")) {
    return {mine, gpu(0), [](const std::string& saved_from) { return saved_from; }};
  } else if (fault("near-miss-through-the-cpu")) {
    return {mine, gpu(0), [](const std::string&) { return "cpu"; }};
  } else {
    return {mine, gpu(0), [=](const std::string&) { return mine; }};
  }
}

// load_state_dict; and writes down how many names fit nothing.
void load_into(RankContext& context, torch::nn::Module& module, const Value& state) {
  const auto names = load_state_dict(module, state, {.strict = false});
  add_figure(context, "names that fit nothing",
             static_cast<double>(names.missing.size() + names.unexpected.size()));
  load_state_dict(module, state);
}

void load_model(RankContext& context, Run& run, const Value& state, const Fault& fault) {
  if (!fault("near-miss-wrapped-both-ways")) return load_into(context, *run.model, state);
  WrapperImpl wrapped(run.model);
  load_into(context, wrapped, state);
}

// Where there are no GPUs, "meta" stands for another device: torch's kernels refuse it beside the
// CPU as they refuse one GPU's tensor beside another's.
at::Device device_in_the_file(const RankContext& context) {
  return context.device().is_cpu() ? at::kMeta : at::kCPU;
}

void restore_optimizer(RankContext& context, Run& run, const Value& saved, const Fault& fault) {
  load_state_dict(run.optimizer, saved);  // the options too; puts copies where the parameters are
  if (fault("near-miss-load-state-dict-moves")) return;
  // The same by hand.
  for (const auto& parameter : run.model->parameters()) {
    auto state = run.optimizer.state_of(parameter);
    for (const char* name : {"exp_avg", "exp_avg_sq"}) {
      const auto tensor = state.at(name).as_tensor();
      if (fault("optimizer-state-on-wrong-device"))
        state[name] = tensor.to(device_in_the_file(context));
      else
        state[name] = tensor.to(parameter.device());
    }
    run.optimizer.set_state(parameter, state);
  }
}

void train(RankContext& context, const Fault& fault) {
  const auto data = training_data(context);
  auto sampler = sampler_of(context, data);
  const auto file = context.folder() / "checkpoint.pt";
  {
    Run run(context, data);
    run.epoch(sampler, 0);
    const auto checkpoint = to_save(context, run, fault);
    save_on_rank_zero(*context.group(),
                      [&] { save_checkpoint(file, checkpoint, {.location = gpu(0)}); });
    context.training_state("saved", run.parts());
  }
  Run run(context, data);  // the job has been started again
  const auto checkpoint = load_by_name(context, file, devices_of(context, fault));
  load_model(context, run, checkpoint.at("model"), fault);
  run.scheduler.load_state_dict(checkpoint.at("scheduler"));
  restore_rng(context, checkpoint.at("rng_state"));
  restore_optimizer(context, run, checkpoint.at("optimizer"), fault);
  context.training_state("resumed", run.parts());
  run.epoch(sampler, 1);
}

// Beside it, before each update: the state tensors on another device than their parameter.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&) : Notes(job) {}

  void update_begins(torch::optim::Optimizer& optimizer) override {
    const auto& adam = dynamic_cast<const Adam&>(optimizer);
    double count = 0;
    for (const auto& parameter : parameters())
      for (const char* name : {"exp_avg", "exp_avg_sq"})
        if (const auto state = adam.state_of(parameter); const auto* value = state.find(name))
          count += value->as_tensor().device() != parameter.device();
    add_figure(context(), "state elsewhere", count);
  }
};

Measured ranks_on_anothers_device(const Outcomes& outcomes) {
  double ranks = 0;
  for (const auto& outcome : outcomes) ranks += largest({outcome}, "loads to another's device");
  return {.expected = 0, .observed = ranks, .tolerance = 0};
}
Measured names_that_fit_nothing(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "names that fit nothing"), .tolerance = 0};
}
Measured tensors_elsewhere(const Outcomes& outcomes) {
  return {.expected = 0, .observed = largest(outcomes, "state elsewhere"), .tolerance = 0};
}

}  // namespace

lockstep::Part loading_part() {
  return {
      .name = "loading",
      .run = train,
      .broken = {{.slug = "load-without-map-location",
                  .what = "every rank loads to the device that was saved from",
                  .oracle = {"ranks that load to another rank's device", ranks_on_anothers_device},
                  .own_gpus = true},
                 {.slug = "optimizer-state-on-wrong-device",
                  .what = "the optimizer's state is on another device than the model",
                  .oracle = {"state tensors on another device than their parameter",
                             tensors_elsewhere},
                  .crashes = true,
                  .min_world_size = 1},
                 {.slug = "module-prefix",
                  .what = "saved from the wrapper, loaded into the module",
                  .oracle = {"names that are missing or unexpected", names_that_fit_nothing},
                  .crashes = true,
                  .min_world_size = 1}},
      .near_misses = {{.name = "near-miss-through-the-cpu",
                       .slug = "load-without-map-location",
                       .naive_check = "tensors are loaded to another device than the rank's"},
                      {.name = "near-miss-load-state-dict-moves",
                       .slug = "optimizer-state-on-wrong-device",
                       .naive_check = "nothing in the program moves the optimizer's state"},
                      {.name = "near-miss-wrapped-both-ways",
                       .slug = "module-prefix",
                       .naive_check = "the names in the file begin with module."}},
      .notes = notes<OwnNotes>};
}
