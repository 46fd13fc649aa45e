#include <lockstep/base/error.h>
#include <lockstep/train/distributed_sampler.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

namespace lockstep {
namespace {

void check(const DistributedSamplerOptions& options) {
  if (options.dataset_size <= 0)
    throw UsageError("DistributedSampler: dataset_size must be above 0, found " +
                     std::to_string(options.dataset_size) + ".");
  if (options.num_replicas <= 0)
    throw UsageError("DistributedSampler: num_replicas must be above 0, found " +
                     std::to_string(options.num_replicas) + ".");
  if (options.rank < 0 || options.rank >= options.num_replicas)
    throw UsageError("DistributedSampler: rank must be from 0 to " +
                     std::to_string(options.num_replicas - 1) + " (num_replicas - 1), found " +
                     std::to_string(options.rank) + ".");
}

// All samples, in the order of the epoch.
std::vector<std::int64_t> order_of_epoch(const DistributedSamplerOptions& options,
                                         std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(options.dataset_size));
  if (!options.shuffle) {
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  // Python's int sum, cut to 64 bits as torch.Generator.manual_seed does with a negative one.
  auto generator = at::detail::createCPUGenerator(options.seed + static_cast<std::uint64_t>(epoch));
  const auto permutation = at::randperm(options.dataset_size, generator, at::kLong);
  std::copy_n(permutation.const_data_ptr<std::int64_t>(), order.size(), order.begin());
  return order;
}

std::vector<std::int64_t> shard(const DistributedSamplerOptions& options, std::int64_t epoch,
                                std::int64_t size) {
  const auto order = order_of_epoch(options, epoch);
  std::vector<std::int64_t> mine(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const auto position =
        static_cast<std::size_t>(options.rank) + i * static_cast<std::size_t>(options.num_replicas);
    mine[i] = order[position % order.size()];  // beyond the end: the head again
  }
  return mine;
}

// What two samplers must share for a position in one to mean the same in the other.
struct SavedField {
  const char* name;
  std::int64_t value;
};
std::array<SavedField, 5> fields(const DistributedSamplerOptions& options) {
  return {{{"dataset_size", options.dataset_size},
           {"num_replicas", options.num_replicas},
           {"shuffle", options.shuffle},
           {"seed", static_cast<std::int64_t>(options.seed)},
           {"drop_last", options.drop_last}}};
}

std::int64_t read_int(torch::serialize::InputArchive& archive, const std::string& name) {
  at::Tensor value;
  archive.read(name, value);
  return value.item<std::int64_t>();
}

}  // namespace

DistributedSampler::DistributedSampler(const DistributedSamplerOptions& options)
    : options_(options), epoch_(std::make_shared<std::int64_t>(0)) {
  check(options_);
  order_ = indices();
}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  *epoch_ = epoch;
}

std::int64_t DistributedSampler::epoch() const {
  return *epoch_;
}

std::vector<std::int64_t> DistributedSampler::indices() const {
  return shard(options_, *epoch_, size());
}

std::int64_t DistributedSampler::size() const {
  const std::int64_t extra = options_.drop_last ? 0 : options_.num_replicas - 1;
  return (options_.dataset_size + extra) / options_.num_replicas;
}

std::vector<std::vector<std::int64_t>> DistributedSampler::batches(std::int64_t batch_size,
                                                                   bool drop_last_batch) const {
  if (batch_size <= 0)
    throw UsageError("DistributedSampler::batches: batch_size must be above 0, found " +
                     std::to_string(batch_size) + ".");
  const auto all = indices();
  const auto count = static_cast<std::int64_t>(all.size());
  std::vector<std::vector<std::int64_t>> result;
  for (std::int64_t begin = 0; begin < count; begin += batch_size) {
    const std::int64_t end = std::min(begin + batch_size, count);
    if (drop_last_batch && end - begin < batch_size) break;
    result.emplace_back(all.begin() + begin, all.begin() + end);
  }
  return result;
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  auto options = options_;
  if (new_size) options.dataset_size = static_cast<std::int64_t>(*new_size);
  check(options);
  options_ = options;
  order_ = indices();
  order_epoch_ = *epoch_;
  next_ = 0;
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  if (batch_size == 0)
    throw UsageError("DistributedSampler::next: batch_size must be above 0, found 0.");
  if (next_ >= order_.size()) return std::nullopt;
  const auto end = next_ + std::min(batch_size, order_.size() - next_);
  std::vector<std::size_t> batch(order_.begin() + static_cast<std::ptrdiff_t>(next_),
                                 order_.begin() + static_cast<std::ptrdiff_t>(end));
  next_ = end;
  return batch;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  // A pass that was drawn from; else the next one, from its beginning.
  const bool finished = next_ == order_.size() && *epoch_ != order_epoch_;
  const bool under_way = next_ > 0 && !finished;
  const auto epoch = under_way ? order_epoch_ : *epoch_;
  const auto position = under_way ? static_cast<std::int64_t>(next_) : 0;
  for (const auto& [name, value] : fields(options_))
    archive.write(name, torch::tensor(value, torch::kLong), /*is_buffer=*/true);
  archive.write("epoch", torch::tensor(epoch, torch::kLong), /*is_buffer=*/true);
  archive.write("position", torch::tensor(position, torch::kLong), /*is_buffer=*/true);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  for (const auto& [name, value] : fields(options_)) {
    const auto saved = read_int(archive, name);
    if (saved != value)
      throw Error("DistributedSampler::load: saved with " + std::string(name) + " " +
                  std::to_string(saved) + ", but this sampler has " + std::to_string(value) +
                  "; a position in the one means nothing in the other.");
  }
  const auto epoch = read_int(archive, "epoch");
  const auto position = read_int(archive, "position");
  if (position < 0 || position > size())
    throw Error("DistributedSampler::load: expected a position from 0 to " +
                std::to_string(size()) + ", found " + std::to_string(position) + ".");
  set_epoch(epoch);
  reset();
  next_ = static_cast<std::size_t>(position);
}

}  // namespace lockstep
