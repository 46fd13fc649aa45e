#include "run.h"

#include <lockstep/base/file.h>
#include <lockstep/gpu/usage.h>
#include <lockstep/lesson/figures.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <set>

namespace checkpoint_lesson {
namespace {

Mlp seeded_model(RankContext& context) {
  torch::manual_seed(context.seed());
  Mlp model(784, 32, 10);
  model->to(context.device());
  context.probes().attach(*model);
  return model;
}

trace::CheckpointFile told_by(const RankContext& context, const Place& place) {
  trace::CheckpointFile what;
  what.local_rank = place.local_rank >= 0 ? place.local_rank : context.rank();
  what.device = context.device().str();
  return what;
}

std::vector<std::string> keys_of(const Value& value) {
  std::vector<std::string> keys;
  if (!value.is_dict() || !value.as_dict().contains("model")) return keys;
  for (const auto& [key, item] : value.at("model").as_dict()) keys.push_back(key.text());
  return keys;
}

}  // namespace

TensorData training_data(RankContext& context) {
  auto data = fashion_mnist_or_synthetic(lockstep::Split::train,
                                         kBatch * kBatchesAnEpoch * context.world_size());
  context.probes().dataset("train", data.inputs, data.targets, all_ids(data.size()), data.size());
  return data;
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
      context_(context),
      data_(std::move(data)) {
  context.probes().engine("distributed_data_parallel");
  torch::manual_seed(context.seed() + 1 + static_cast<std::uint64_t>(context.rank()));
}

void Run::begin_pass(std::int64_t epoch) {
  epoch_ = epoch;
  batches_ = 0;
  drawn_.clear();
  context_.probes().pass_begin("train", epoch);
}

void Run::step(const std::vector<std::int64_t>& ids) {
  auto& probes = context_.probes();
  probes.samples("train", ids);
  drawn_.insert(drawn_.end(), ids.begin(), ids.end());
  const auto batch = take(data_, ids);
  const auto inputs = batch.inputs + 0.1 * torch::randn_like(batch.inputs);
  optimizer.zero_grad();
  const auto each =
      torch::cross_entropy_loss(ddp(inputs.to(context_.device())),
                                batch.targets.to(context_.device()), {}, at::Reduction::None);
  const auto loss = each.mean();
  probes.loss(loss, each);
  loss.backward();
  probes.gradients_ready();
  optimizer.step();
  probes.updated(optimizer);
  scheduler.step();
  ++batches_;
}

void Run::end_pass() {
  context_.probes().pass_end("train", epoch_, batches_);
  break_off();
}

void Run::break_off() {
  context_.outcome().ids["train"].push_back(drawn_);
}

void Run::epoch(DistributedSampler& sampler, std::int64_t epoch) {
  sampler.set_epoch(epoch);
  context_.probes().set_epoch(epoch);
  begin_pass(epoch);
  for (const auto& ids : sampler.batches(kBatch)) step(ids);
  end_pass();
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

void write_checkpoint(RankContext& context, const std::filesystem::path& file, const Value& value,
                      const SaveOptions& options, const Place& place) {
  const auto what = told_by(context, place);
  context.probes().checkpoint_file("save_begin", file, what);
  save_checkpoint(file, value, options);
  context.probes().checkpoint_file("save_end", file, what);
}

Checkpoint read_checkpoint(RankContext& context, const std::filesystem::path& file,
                           const Devices& devices) {
  auto what = told_by(context, {});
  if (!devices.device.empty()) what.device = devices.device;
  auto& readable = context.outcome().figures["readable"];
  try {
    MapLocation map_location(context.device());
    if (context.device().is_cuda() && devices.map_location)
      map_location = MapLocation::Function([&](const std::string& saved_from) {
        return c10::Device(devices.map_location(saved_from));
      });
    auto checkpoint = load_checkpoint(file, {.map_location = map_location});
    std::set<std::string> from, to;
    for (const auto& [tensor, location] : checkpoint.locations) {
      from.insert(location);
      to.insert(devices.map_location ? devices.map_location(location) : context.device().str());
    }
    what.from.assign(from.begin(), from.end());
    what.to.assign(to.begin(), to.end());
    what.keys = keys_of(checkpoint.value);
    context.probes().checkpoint_file("load", file, what);
    readable = {1};
    return checkpoint;
  } catch (const Error&) {
    what.accepted = false;
    context.probes().checkpoint_file("load", file, what);
    readable = {0};
    throw;
  }
}

double bytes_on_gpu_zero() {
  const auto usage = gpu::ask_usage();
  if (!usage || usage->empty()) return std::numeric_limits<double>::quiet_NaN();
  for (const auto& process : usage->front().processes)
    if (process.pid == getpid() && process.bytes) return static_cast<double>(*process.bytes);
  return 0;
}

std::string bytes_of(RankContext& context, const Value& value) {
  const auto scratch = context.folder() / ("scratch_" + std::to_string(context.rank()) + ".pt");
  save_checkpoint(scratch, value);
  const auto bytes = read_file(scratch);
  std::filesystem::remove(scratch);
  return bytes;
}

void write_among_others(RankContext& context, const std::filesystem::path& file, const Value& value,
                        bool writes, const Place& place) {
  const auto bytes = bytes_of(context, value);
  const auto half = static_cast<std::streamoff>(bytes.size() / 2);
  const auto what = told_by(context, place);
  std::fstream out;
  if (writes) {
    context.probes().checkpoint_file("save_begin", file, what);
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
  if (writes) context.probes().checkpoint_file("save_end", file, what);
  barrier(*context.group());
}

Measured readable_checkpoints(const Outcomes& outcomes) {
  return {.expected = 1, .observed = smallest(outcomes, "readable"), .tolerance = 0};
}

}  // namespace checkpoint_lesson
