// Checkpoints: files that Python's torch.load(path, weights_only=True) reads, and that hold what
// Python's torch.save(state_dict) writes.
//
//   save_checkpoint("run/model.pt", Value::Dict{{"model", state_dict(*model)},
//                                               {"optimizer", state_dict(optimizer)},
//                                               {"scheduler", scheduler.state_dict()},
//                                               {"sampler", sampler.state_dict()},
//                                               {"rng_state", get_rng_state()},
//                                               {"epoch", epoch}});
//
//   const auto checkpoint = load_checkpoint("run/model.pt", {.map_location = "cpu"});
//   load_state_dict(*model, checkpoint.at("model"));
//   load_state_dict(optimizer, checkpoint.at("optimizer"));
//   scheduler.load_state_dict(checkpoint.at("scheduler"));
//   sampler.load_state_dict(checkpoint.at("sampler"));
//   set_rng_state(checkpoint.at("rng_state").as_tensor());
//   const auto next_epoch = checkpoint.at("epoch").as_int() + 1;
//
// That is one rank's generator. Where the ranks draw numbers of their own, gather all ranks' states and
// save them as a list, as lesson 07 does.
//
// Nothing in this file is collective: one rank saves, every rank may load. save_on_rank_zero.h has
// the collective way.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <lockstep/archive/checkpoint_folder.h>
#include <lockstep/checkpoint/map_location.h>
#include <lockstep/checkpoint/model_state.h>
#include <lockstep/checkpoint/optimizer_state.h>
#include <lockstep/observe/place.h>
#include <lockstep/train/value.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace lockstep {

using archive::CheckpointFolder;
using archive::CheckpointFolderOptions;

struct SaveOptions {
  // Wait until the disk has the file. Without it a killed process still leaves the older file or
  // the newer one, but a power cut may leave an empty one.
  bool sync = true;
  // What to record as the device of every tensor, as if saved from there; none: where each is.
  std::optional<std::string> location = std::nullopt;
  archive::System* system = nullptr;  // for tests: system calls that fail
};

// Writes the file beside its place and puts it there when it is complete: whoever reads `path` finds
// the older file or the newer one, whole. The tensors' bytes go straight to the file, so no second
// copy of a model is made (a tensor on another device is copied to the host, one storage at a time).
// Removes what a killed save left in the same folder.
//
// Throws Error naming the path and the reason; the older file is then untouched, unless the text
// says otherwise. Refuses what another process or thread is saving, if it still is after a tenth of a second.
// Through a symbolic link it is the link's target that is replaced.
void save_checkpoint(const std::filesystem::path& path, const Value& value,
                     const SaveOptions& options = {}, Place place = Place::here());

// The same into a folder that keeps the newest few and points at the newest; whether it waits for the
// disk is the folder's option. Returns the path, which load_checkpoint(*folder.latest()) finds.
std::filesystem::path save_checkpoint(CheckpointFolder& folder, std::int64_t number,
                                      const Value& value, Place place = Place::here());

struct LoadOptions {
  MapLocation map_location;
};

struct Checkpoint {
  Value value;
  // The device that each tensor was saved from, whatever map_location made of it, by its path:
  // {"model.fc1.weight", "cuda:0"}.
  std::map<std::string, std::string> locations;

  const Value& at(const Key& key) const& { return value.at(key); }
  Value at(const Key& key) && { return value.at(key); }
};

// Reads a file of ours or of torch.save (format 3, torch 1.6 and later), which holds plain values
// and tensors; whatever else a pickle may ask for is refused by name, and nothing is ever run. A
// file from an untrusted source can do no harm: it is checked against its size and its checksums
// before memory is taken, and may at worst be refused.
//
// Throws Error naming the path, and the tensor where it is one: a file that is no checkpoint,
// damaged, or from a device that is not here.
Checkpoint load_checkpoint(const std::filesystem::path& path, const LoadOptions& options = {},
                           Place place = Place::here());

// The random generators' states, as Python's torch.get_rng_state() gives them.
//
// A byte tensor on the CPU, 5056 bytes for a CPU generator. Without an argument: of torch's default
// one, which torch::randn and dropout on the CPU draw from.
at::Tensor get_rng_state();
at::Tensor get_rng_state(const at::Generator& generator);

// The generator goes on where the state was taken. Throws Error for what is no such state. Each rank
// has a generator of its own: a checkpoint saved by rank 0 holds rank 0's.
void set_rng_state(const at::Tensor& state);
void set_rng_state(at::Generator generator, const at::Tensor& state);

}  // namespace lockstep
