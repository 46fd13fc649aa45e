#include "run.h"

#include <lockstep/base/environment.h>
#include <lockstep/base/file.h>
#include <lockstep/gpu/usage.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/observe/observer.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <set>

namespace checkpoint_lesson {
namespace {

Mlp seeded_model(const RankContext& context) {
  torch::manual_seed(context.seed());
  Mlp model(784, 32, 10);
  model->to(context.device());
  return model;
}

// What this process holds of the first GPU's memory, its context included. 0: it has no context
// there. NaN where NVML does not say.
double bytes_on_gpu_zero() {
  const auto usage = gpu::ask_usage();
  if (!usage || usage->empty()) return std::numeric_limits<double>::quiet_NaN();
  for (const auto& process : usage->front().processes)
    if (process.pid == getpid() && process.bytes) return static_cast<double>(*process.bytes);
  return 0;
}

// As load_checkpoint tells it, with the devices' names.
void tell_load(RankContext& context, const std::filesystem::path& file,
               const Checkpoint& checkpoint, const Devices& devices) {
  std::set<std::string> from, to;
  for (const auto& [tensor, location] : checkpoint.locations) {
    from.insert(location);
    to.insert(devices.map_location(location));
  }
  trace::CheckpointFile what;
  what.local_rank = environment_int("LOCAL_RANK").value_or(context.rank());
  what.device = devices.device;
  what.from.assign(from.begin(), from.end());
  what.to.assign(to.begin(), to.end());
  what.keys = checkpoint.at("model").as_dict().keys();
  context.told().checkpoint_file("load", file, what);
}

}  // namespace

TensorData training_data(const RankContext& context) {
  return fashion_mnist_or_synthetic(lockstep::Split::train,
                                    kBatch * kBatchesAnEpoch * context.world_size());
}

DistributedSampler sampler_of(const RankContext& context, const TensorData& data) {
  return DistributedSampler({.dataset_size = data.size(),
                             .num_replicas = context.world_size(),
                             .rank = context.rank(),
                             .seed = context.seed()});
}

Run::Run(RankContext& context, TensorData data)
    : model(seeded_model(context)),
      ddp(model, context.group()),
      optimizer(model->parameters(), AdamOptions(1e-3)),
      scheduler(optimizer, {.step_size = 4, .gamma = 0.5}),
      device_(context.device()),
      data_(std::move(data)) {
  torch::manual_seed(context.seed() + 1 + static_cast<std::uint64_t>(context.rank()));
}

void Run::step(const std::vector<std::int64_t>& ids) {
  const auto batch = take(data_, ids);
  const auto inputs = batch.inputs + 0.1 * torch::randn_like(batch.inputs);
  optimizer.zero_grad();
  const auto outputs = ddp(inputs.to(device_));
  cross_entropy(outputs, batch.targets.to(device_)).mean().backward();
  optimizer.step();
  scheduler.step();
}

void Run::epoch(DistributedSampler& sampler, std::int64_t epoch) {
  sampler.set_epoch(epoch);
  for (const auto& ids : sampler.batches(kBatch)) step(ids);
}

Value::Dict Run::parts() {
  Value::Dict parts{{"model", state_dict(*model)},
                    {"optimizer", state_dict(optimizer)},
                    {"scheduler", scheduler.state_dict()},
                    {"rng_state", get_rng_state()}};
  if (!average.is_empty()) parts["average"] = state_dict(*average);
  return parts;
}

Value::List all_rng_states(RankContext& context) {
  Value::List states;
  for (const auto& state : all_gather(*context.group(), get_rng_state().to(context.device())))
    states.emplace_back(state.cpu());
  return states;
}

void restore_rng(RankContext& context, const Value& all_states) {
  const auto& states = all_states.as_list();
  // The generator is the CPU's, wherever map_location has sent the checkpoint.
  set_rng_state(states.at(static_cast<std::size_t>(context.rank())).as_tensor().cpu());
}

Checkpoint load_by_name(RankContext& context, const std::filesystem::path& file,
                        const Devices& devices) {
  if (context.device().is_cuda()) {
    const auto to = [&](const std::string& from) {
      return c10::Device(devices.map_location(from));
    };
    auto checkpoint = load_checkpoint(file, {.map_location = MapLocation::Function(to)});
    const auto weight = checkpoint.at("model").as_dict().begin()->second.as_tensor();
    const auto went_to = weight.device().str();
    add_figure(context, "loads to another's device",
               went_to == devices.saver && went_to != devices.device ? 1 : 0);
    // It has a context there as soon as one of its tensors goes there.
    add_figure(context, "bytes on GPU 0", bytes_on_gpu_zero());
    return checkpoint;
  }
  const Unobserved unobserved;  // load_checkpoint would tell that all is on the CPU
  auto checkpoint = load_checkpoint(file, {.map_location = context.device()});
  tell_load(context, file, checkpoint, devices);
  const auto went_to = devices.map_location(devices.saver);
  add_figure(context, "loads to another's device",
             went_to == devices.saver && went_to != devices.device ? 1 : 0);
  return checkpoint;
}

std::string bytes_of(RankContext& context, const Value& value) {
  const Unobserved unobserved;  // it is no checkpoint
  const auto scratch = context.folder() / ("scratch_" + std::to_string(context.rank()) + ".pt");
  save_checkpoint(scratch, value);
  const auto bytes = read_file(scratch);
  std::filesystem::remove(scratch);
  return bytes;
}

void write_among_others(RankContext& context, const std::filesystem::path& file, const Value& value,
                        bool writes) {
  const auto bytes = bytes_of(context, value);
  const auto half = static_cast<std::streamoff>(bytes.size() / 2);
  std::fstream out;
  if (writes) {
    tell([&](Observer& to) { to.saving(file); });
    out.open(file, std::ios::out | std::ios::binary | std::ios::trunc);
  }
  barrier(*context.group());
  for (int turn = 0; turn < context.world_size(); ++turn) {
    if (writes && turn == context.rank()) out.write(bytes.data(), half).flush();
    barrier(*context.group());
  }
  for (int turn = context.world_size() - 1; turn >= 0; --turn) {
    if (writes && turn == context.rank())
      out.write(bytes.data() + half, static_cast<std::streamoff>(bytes.size()) - half).flush();
    barrier(*context.group());
  }
  if (writes) tell([&](Observer& to) { to.saved(file, value.as_dict().keys()); });
  barrier(*context.group());
}

void Loads::loaded(const std::filesystem::path&, const std::vector<std::string>&,
                   const std::vector<std::string>&, const std::vector<std::string>&) {
  context().outcome().figures["readable"] = {1};
  held_ = flat_parameters(parameters());
}

void Loads::refused(const std::filesystem::path&) {
  context().outcome().figures["readable"] = {0};
}

void Loads::finish() {
  Notes::finish();
  if (held_.defined())
    add_figure(context(), "distance", relative_distance(flat_parameters(parameters()), held_));
}

Measured readable_checkpoints(const Outcomes& outcomes) {
  return {.expected = 1, .observed = smallest(outcomes, "readable"), .tolerance = 0};
}

}  // namespace checkpoint_lesson
