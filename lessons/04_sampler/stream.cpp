// Lesson 04, part "stream": data that is read, not indexed.
//
// Concept:  a stream has no sampler. Whoever reads it must skip what belongs to others: to other
//           ranks, and to the other loader workers of the same rank.
// Symptom:  each sample is trained on W x workers times an epoch: by each worker of each rank.
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/training.h>
#include <lockstep/train/distributed_sampler.h>

#include <algorithm>

namespace {

using namespace lockstep;

constexpr int kWorkers = 2;
constexpr std::int64_t kBatch = 16;
constexpr std::int64_t kSamplesPerReader = 32;

// What one loader worker of one rank reads: the stream from its start, less what it skips.
std::vector<std::int64_t> read_stream(std::int64_t length, std::int64_t reader,
                                      std::int64_t readers) {
  std::vector<std::int64_t> ids;
  for (std::int64_t id = 0; id < length; ++id)
    if (id % readers == reader) ids.push_back(id);
  return ids;
}

// What the loader gives the rank: a batch from each worker in turn.
std::vector<std::vector<std::int64_t>> in_turn(
    const std::vector<std::vector<std::int64_t>>& workers) {
  std::vector<std::vector<std::int64_t>> batches;
  for (std::size_t begin = 0; begin < workers[0].size(); begin += kBatch)
    for (const auto& ids : workers)
      batches.emplace_back(ids.begin() + begin, ids.begin() + std::min(begin + kBatch, ids.size()));
  return batches;
}

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  const std::int64_t length = kSamplesPerReader * kWorkers * world_size;
  std::vector<std::vector<std::int64_t>> workers;
  for (int worker = 0; worker < kWorkers; ++worker) {
    if (fault("stream-not-sharded")) {
      workers.push_back(read_stream(length, 0, 1));
    } else {
      workers.push_back(
          read_stream(length, context.rank() * kWorkers + worker, world_size * kWorkers));
    }
  }
  Trainer trainer(context, fashion_mnist_or_synthetic(Split::train, length));
  const auto batches = in_turn(workers);
  tell_pass(0, length, batches);  // as a sampler does by itself
  for (const auto& ids : batches) trainer.step(ids);
}

Measured most_often(const Outcomes& outcomes) {
  const auto ranks = static_cast<std::int64_t>(outcomes.size());
  const auto times = times_drawn(outcomes, "train", 0, kSamplesPerReader * kWorkers * ranks);
  return {.expected = 1,
          .observed = static_cast<double>(*std::max_element(times.begin(), times.end())),
          .tolerance = 0};
}

}  // namespace

lockstep::Part stream_part() {
  return {.name = "stream",
          .run = train,
          .broken = {{.slug = "stream-not-sharded",
                      .what = "every worker of every rank reads the whole stream",
                      .oracle = {"times the most drawn sample was drawn in an epoch", most_often},
                      .min_world_size = 1}}};
}
