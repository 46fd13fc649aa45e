// Lesson 17, part "shared memory": batches go from process to process through /dev/shm.
//
// Concept:  /dev/shm is a file system in memory, of a fixed size: by default half of the machine's
//           memory, or 64 MB in a Docker container. All processes of the container share it:
//           loaders that hand batches to their rank, and NCCL, which may hand data from GPU to GPU
//           through it where these cannot reach each other's memory.
// Symptom:  "No space left on device (28)", or "Bus error" where a file only has a size and no
//           pages; mostly in a container. With more ranks, or more loaders, or on a machine whose
//           GPUs are further apart.
#include <lockstep/base/error.h>
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/training.h>
#include <lockstep/train/distributed_sampler.h>
#include <sys/statvfs.h>

#include "batch_queue.h"
#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kRoomPerRank = 120 << 10;  // of the container, in place of 64 MB in all
constexpr std::int64_t kBatch = 16;               // per rank
constexpr std::int64_t kSteps = 40;
constexpr std::int64_t kAhead = kSteps;  // batches made ahead: 2 MB, more than 16 ranks' room

// Collective. A rank's share of what is free, if all take theirs.
std::int64_t share_of_shared_memory(RankContext& context) {
  struct statvfs room {};
  if (::statvfs("/dev/shm", &room) != 0) throw Error("/dev/shm cannot be asked for its room");
  barrier(*context.group());  // all have asked before one takes: else a later one divides the rest
  const auto pages = static_cast<std::int64_t>(room.f_bavail) / context.world_size();
  return pages * static_cast<std::int64_t>(room.f_frsize);
}

std::vector<std::vector<std::int64_t>> batches_of(int rank, int world_size) {
  std::vector<std::vector<std::int64_t>> batches;
  for (std::int64_t step = 0; step < kSteps; ++step)
    batches.push_back(global_batch(step * world_size + rank, kBatch));
  return batches;
}

// Each rank makes the batches of the next rank, as a loader process would, and hands them over in
// shared memory.
void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size(), rank = context.rank();
  std::filesystem::path folder = "/dev/shm";
  std::int64_t ahead = kAhead;
  if (fault("small-shared-memory")) {
    // Nobody asks whether there is room for that.
  } else if (fault("near-miss-another-way")) {
    folder = context.folder();  // Near miss: a file that both map, slower, and not in /dev/shm.
  } else if (fault("near-miss-one-batch-ahead")) {
    ahead = 1;  // Near miss: there is room for that, without asking.
  } else {
    const auto share = share_of_shared_memory(context);
    while (ahead > 0 && bytes_of_queue(ahead, kBatch) > share) --ahead;
    if (ahead == 0)
      throw Error("/dev/shm has no room for one batch a rank: " + std::to_string(share) +
                  " bytes for each; make it larger (docker run --shm-size)");
  }
  const auto file_of = [&](int of) { return folder / ("batches_" + std::to_string(of)); };
  BatchQueue out(SharedFile::make(context, file_of(rank), bytes_of_queue(ahead, kBatch)), ahead,
                 kBatch);
  barrier(*context.group());
  BatchQueue in(SharedFile::open(file_of((rank + world_size - 1) % world_size)));

  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * kSteps * world_size);
  const auto own = batches_of(rank, world_size);
  const auto next_ranks = batches_of((rank + 1) % world_size, world_size);
  Trainer trainer(context, data);
  tell_pass(0, data.size(), own);
  std::size_t made = 0;
  for (const auto& ids : own) {
    for (; made < next_ranks.size() && out.has_room(); ++made)
      out.put(rows_of(data, next_ranks[made]));
    const auto batch = in.take(kUntilAllAreThere);
    tell_taken(data, ids);
    trainer.step(batch);
  }
}

// The ranks of one container.
void train_in_container(RankContext& context, const Fault& fault) {
  if (!context.devices().front().is_cpu())
    throw UnavailableError(
        "this part runs over gloo: NCCL may keep files of its own in /dev/shm, and has no room in "
        "the small one that this part makes; leave --backend nccl out");
  enter_small_shared_memory(context, kRoomPerRank * context.world_size());
  context.join(kUntilAllAreThere);
  barrier(*context.group());  // all are connected before one can be refused, and end
  train(context, fault);
}

Measured batches_trained_on(const Outcomes& outcomes) {
  double batches = 0;
  for (const auto& outcome : outcomes)
    if (const auto found = outcome.figures.find("batches"); found != outcome.figures.end())
      batches += found->second.front();
  return {.expected = static_cast<double>(kSteps) * static_cast<double>(outcomes.size()),
          .observed = batches};
}

}  // namespace

Part shared_memory_part() {
  return {.name = "shared-memory",
          .run = train_in_container,
          .broken = {{.slug = "small-shared-memory",
                      .what = "all 40 batches are made ahead, whatever /dev/shm has room for",
                      .oracle = {"batches trained on, over all ranks", batches_trained_on},
                      .crashes = true}},
          .near_misses = {{.name = "near-miss-another-way",
                           .slug = "small-shared-memory",
                           .naive_check = "a small /dev/shm, and batches that it has no room for"},
                          {.name = "near-miss-one-batch-ahead",
                           .slug = "small-shared-memory",
                           .naive_check = "nobody asks a small /dev/shm how much is free"}},
          .participants = Participants::strangers};
}
