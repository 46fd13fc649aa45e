// What the parts of this lesson train, write and read.
#pragma once

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/save_on_rank_zero.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/dataset.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
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

// The data of this many ranks.
TensorData training_data(const RankContext& context);
DistributedSampler sampler_of(const RankContext& context, const TensorData& data);

// An MLP under DDP, with Adam 1e-3 and a schedule; noise on the inputs comes from the
// rank's own default generator. A new Run has everything as at the beginning, like a process that
// was started again. Collective as DDP is.
class Run {
 public:
  Run(RankContext& context, TensorData data);

  void step(const std::vector<std::int64_t>& ids);
  void epoch(DistributedSampler& sampler, std::int64_t epoch);  // a whole one

  // All it holds, by name; the tensors share its memory.
  Value::Dict parts();

  Mlp model;
  DistributedDataParallel<Mlp> ddp;
  Adam optimizer;
  StepLR scheduler;
  Mlp average = nullptr;  // of the weights, for parts that keep an average

 private:
  c10::Device device_;
  TensorData data_;
};

// Every rank's generator state, in rank order: a rank alone knows only its own. Collective.
Value::List all_rng_states(RankContext& context);
void restore_rng(RankContext& context, const Value& all_states);  // this rank's

// Where there are no GPUs a device is only a name: loads to the CPU, and tells the trace that this
// rank trains on `device` and that a tensor that was saved from the device x went to
// `map_location(x)`. Where the ranks are on GPUs, it goes there. Adds the figure "loads to
// another's device": whether all went to `saver`, which is not this rank's.
struct Devices {
  std::string device, saver;
  std::function<std::string(const std::string&)> map_location;
};
Checkpoint load_by_name(RankContext& context, const std::filesystem::path& file,
                        const Devices& devices);

// Several ranks write one file, each as std::ofstream does: it empties the file, writes the first
// half of its own bytes, then the second. Barriers make the worst order certain: the first half is
// the last writer's, the second the first writer's. Collective; `writes` says whether this rank
// writes.
void write_among_others(RankContext& context, const std::filesystem::path& file, const Value& value,
                        bool writes);

// The bytes of a file that holds this value.
std::string bytes_of(RankContext& context, const Value& value);

// Beside the training: whether the rank's last load found a whole checkpoint, and how far the
// weights are at the end from those that it had when it loaded.
class Loads final : public Notes {
 public:
  Loads(RankContext& job, const Fault&) : Notes(job) {}
  void loaded(const std::filesystem::path& file, const std::vector<std::string>& from,
              const std::vector<std::string>& to, const std::vector<std::string>& keys) override;
  void refused(const std::filesystem::path& file) override;
  void finish() override;

 private:
  at::Tensor held_;
};

// For the oracles: 1 where every rank's last load found a whole checkpoint, else 0.
Measured readable_checkpoints(const Outcomes& outcomes);

}  // namespace checkpoint_lesson
