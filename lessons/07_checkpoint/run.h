// What the parts of this lesson train, write and read.
#pragma once

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/save_on_rank_zero.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/dataset.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/models.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace checkpoint_lesson {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;  // per rank
constexpr std::int64_t kBatchesAnEpoch = 6;

// The data of this many ranks, told to the probes.
TensorData training_data(RankContext& context);
DistributedSampler sampler_of(const RankContext& context, const TensorData& data);

// Article D's MLP under DDP, with Adam 1e-3 and a schedule; noise on the inputs comes from the
// rank's own default generator. A new Run has everything as at the beginning, like a process that
// was started again. Collective as DDP is.
class Run {
 public:
  Run(RankContext& context, TensorData data);

  void begin_pass(std::int64_t epoch);
  void step(const std::vector<std::int64_t>& ids);
  void end_pass();
  void break_off();  // writes down a pass that ends before its epoch does
  void epoch(DistributedSampler& sampler, std::int64_t epoch);  // a whole one

  // All it holds, by name; the tensors share its memory.
  Value::Dict parts();

  Mlp model;
  DistributedDataParallel<Mlp> ddp;
  Adam optimizer;
  StepLR scheduler;
  Mlp average = nullptr;  // of the weights, for parts that keep an average

 private:
  RankContext& context_;
  TensorData data_;
  std::int64_t epoch_ = 0, batches_ = 0;
  std::vector<std::int64_t> drawn_;
};

// Every rank's generator state, in rank order: a rank alone knows only its own. Collective.
Value::List all_rng_states(RankContext& context);
void restore_rng(RankContext& context, const Value& all_states);  // this rank's

// save_checkpoint and load_checkpoint, told to the probes. Not collective.
struct Place {
  int local_rank = -1;  // -1: the rank
};
void write_checkpoint(RankContext& context, const std::filesystem::path& file, const Value& value,
                      const SaveOptions& options = {}, const Place& place = {});
// `device` is the name of the device this rank trains on. `map_location` gives, for the name of the
// device that a tensor was saved from, the name of the one it goes to. Where the ranks are on GPUs
// it goes there; without GPUs the name is only recorded. Adds the figure "readable".
struct Devices {
  std::string device;
  std::function<std::string(const std::string&)> map_location;
};
Checkpoint read_checkpoint(RankContext& context, const std::filesystem::path& file,
                           const Devices& devices = {});

// What this process holds of the first GPU's memory, its context included. 0: it has no context
// there. NaN where NVML does not say.
double bytes_on_gpu_zero();

// Several ranks write one file, each as std::ofstream does: it empties the file, writes the first
// half of its own bytes, then the second. Barriers make the worst order certain: the first half is
// the last writer's, the second the first writer's. Collective; `writes` says whether this rank
// writes.
void write_among_others(RankContext& context, const std::filesystem::path& file, const Value& value,
                        bool writes, const Place& place = {});

// The bytes of a file that holds this value.
std::string bytes_of(RankContext& context, const Value& value);

// For the oracles: 1 where every rank's last load found a whole checkpoint, else 0.
Measured readable_checkpoints(const Outcomes& outcomes);

}  // namespace checkpoint_lesson
