// Lesson 04, part "sharding": a data set of many files, split among the ranks exactly once.
//
// Concept:  either a sampler deals out indices, over one order of files that all ranks agree on; or
//           each rank reads its own files. Not neither, and not both.
// Symptom:  every rank trains on everything (W times the work), or on 1/W of 1/W. If the ranks list
//           the folder in different orders, index 7 is another sample on each. If each shuffles
//           with a seed of its own, some samples come several times and others never.
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/training.h>
#include <lockstep/train/distributed_sampler.h>

#include <algorithm>
#include <fstream>
#include <numeric>

namespace {

using namespace lockstep;

constexpr std::int64_t kSamplesPerFile = 32;
constexpr int kFilesPerRank = 4;
constexpr std::int64_t kBatch = 32;
constexpr int kEpochs = 2;

// This rank's copy of the data folder, as a job finds it on a node's own disk: each file holds the
// ids of its samples.
std::filesystem::path make_folder(RankContext& context) {
  const auto folder = context.folder() / ("data_of_rank_" + std::to_string(context.rank()));
  std::filesystem::create_directories(folder);
  for (int file = 0; file < kFilesPerRank * context.world_size(); ++file) {
    std::ofstream out(folder / ("part-" + std::to_string(100 + file)));
    for (std::int64_t i = 0; i < kSamplesPerFile; ++i) out << file * kSamplesPerFile + i << "\n";
  }
  return folder;
}

// A folder lists its files in an order that depends on the file system. Two machines' orders are
// made to differ here for certain: sorted, then turned by the rank.
std::vector<std::filesystem::path> list(RankContext& context, const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::rotate(files.begin(), files.begin() + context.rank(), files.end());
  return files;
}

std::vector<std::int64_t> ids_in(const std::vector<std::filesystem::path>& files) {
  std::vector<std::int64_t> ids;
  for (const auto& file : files) {
    std::ifstream in(file);
    for (std::int64_t id = 0; in >> id;) ids.push_back(id);
  }
  return ids;
}

// The files that are this rank's: every world_size-th.
std::vector<std::filesystem::path> own_files(const RankContext& context,
                                             const std::vector<std::filesystem::path>& files) {
  std::vector<std::filesystem::path> mine;
  for (std::size_t i = context.rank(); i < files.size(); i += context.world_size())
    mine.push_back(files[i]);
  return mine;
}

// The samples in these files: position i is not sample i, so they keep their ids.
TensorData read(const RankContext& context, const std::vector<std::filesystem::path>& files) {
  const auto ids = ids_in(files);
  const std::int64_t global_size = kSamplesPerFile * kFilesPerRank * context.world_size();
  auto data = rows_of(fashion_mnist_or_synthetic(Split::train, global_size), ids);
  data.ids = ids;
  data.global_size = global_size;
  return data;
}

// A near miss: a new sampler each epoch, with a seed of the epoch's own, the same on all ranks.
DistributedSampler reseeded(DistributedSamplerOptions split, std::int64_t epoch) {
  split.seed += 1000 * static_cast<std::uint64_t>(epoch);
  return DistributedSampler(split);
}

void train(RankContext& context, const Fault& fault) {
  auto files = list(context, make_folder(context));
  if (fault("file-order-differs")) {
    // Nothing: the order the folder gave.
  } else {
    std::sort(files.begin(), files.end());
  }
  if (fault("sharded-twice")) {
    // The sampler below splits what is split here already.
    files = own_files(context, files);
  } else if (fault("near-miss-files-only")) {
    files = own_files(context, files);  // A near miss: split by files, and by nothing else.
  }
  const auto data = read(context, files);

  DistributedSamplerOptions split{.dataset_size = data.size(), .seed = context.seed()};
  if (fault("no-sharding")) {
    // Nothing: every rank deals itself the whole order.
  } else if (fault("near-miss-files-only")) {
    // A near miss: the files are this rank's already.
  } else {
    split.num_replicas = context.world_size();
    split.rank = context.rank();
  }
  if (fault("shards-overlap")) {
    split.seed += context.rank();  // Each rank takes its share of another order.
  }
  DistributedSampler sampler(split);

  Trainer trainer(context, data);
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    if (fault("near-miss-seed-by-epoch")) {
      sampler = reseeded(split, epoch);
    } else {
      sampler.set_epoch(epoch);
    }
    for (const auto& positions : sampler.batches(kBatch)) trainer.step(positions);
  }
}

std::vector<std::int64_t> drawn_in_first_epoch(const Outcomes& outcomes) {
  const auto ranks = static_cast<std::int64_t>(outcomes.size());
  return times_drawn(outcomes, "train", 0, kSamplesPerFile * kFilesPerRank * ranks);
}

Measured most_often(const Outcomes& outcomes) {
  const auto times = drawn_in_first_epoch(outcomes);
  return {.expected = 1,
          .observed = static_cast<double>(*std::max_element(times.begin(), times.end())),
          .tolerance = 0};
}

Measured share_seen(const Outcomes& outcomes) {
  const auto times = drawn_in_first_epoch(outcomes);
  const auto seen = std::count_if(times.begin(), times.end(), [](auto n) { return n > 0; });
  return {.expected = 1,
          .observed = static_cast<double>(seen) / static_cast<double>(times.size()),
          .tolerance = 0};
}

}  // namespace

lockstep::Part sharding_part() {
  return {
      .name = "sharding",
      .run = train,
      .broken = {{.slug = "no-sharding",
                  .what = "every rank goes through the whole data set",
                  .oracle = {"times the most drawn sample was drawn in an epoch", most_often}},
                 {.slug = "sharded-twice",
                  .what = "own files and a sampler: split by both",
                  .oracle = {"share of the samples that some rank drew in an epoch", share_seen}},
                 {.slug = "file-order-differs",
                  .what = "files taken in the order the folder lists them",
                  .oracle = {"share of the samples that some rank drew in an epoch", share_seen}},
                 {.slug = "shards-overlap",
                  .what = "each rank's sampler has a seed of its own: seed + rank",
                  .oracle = {"share of the samples that some rank drew in an epoch", share_seen}}},
      .near_misses = {{.name = "near-miss-files-only",
                       .slug = "no-sharding",
                       .naive_check = "no distributed sampler is used"},
                      {.name = "near-miss-seed-by-epoch",
                       .slug = "shards-overlap",
                       .naive_check = "samplers are made with different seeds"}}};
}
