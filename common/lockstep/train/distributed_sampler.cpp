#include <lockstep/base/error.h>
#include <lockstep/observe/observer.h>
#include <lockstep/train/distributed_sampler.h>
#include <torch/torch.h>

#include <algorithm>
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

int joined_replicas = 1;
bool swapped = false;

int joined_by(const DistributedSamplerOptions& options) {
  return options.num_replicas == 1 ? joined_replicas : 1;
}

// This rank's samples of the epoch, without the first `given`, which all ranks together have had.
std::vector<std::int64_t> shard(const DistributedSamplerOptions& options, std::int64_t epoch,
                                std::int64_t given) {
  const auto order = order_of_epoch(options, epoch);
  const std::int64_t rest = std::max<std::int64_t>(options.dataset_size - given, 0);
  const std::int64_t joined = joined_by(options), replicas = options.num_replicas * joined;
  const std::int64_t rank = swapped ? options.num_replicas - 1 - options.rank : options.rank;
  const std::int64_t extra = options.drop_last ? 0 : replicas - 1;
  std::vector<std::int64_t> mine(static_cast<std::size_t>((rest + extra) / replicas * joined));
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const auto position =
        static_cast<std::size_t>(given + rank) + i * static_cast<std::size_t>(options.num_replicas);
    mine[i] = order[position % order.size()];  // beyond the end: the head again
  }
  return mine;
}

}  // namespace

void join_replicas(int num_replicas) {
  joined_replicas = num_replicas;
}

void swap_replicas(bool wanted) {
  swapped = wanted;
}

DistributedSampler::DistributedSampler(const DistributedSamplerOptions& options)
    : options_(options), epoch_(std::make_shared<std::int64_t>(0)) {
  check(options_);
  order_ = indices();
}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  *epoch_ = epoch;
  tell([&](Observer& to) { to.set_epoch(epoch); });
}

std::int64_t DistributedSampler::epoch() const {
  return *epoch_;
}

std::vector<std::int64_t> DistributedSampler::indices() const {
  return shard(options_, *epoch_, 0);
}

std::int64_t DistributedSampler::size() const {
  const std::int64_t replicas = options_.num_replicas * joined_by(options_);
  return (options_.dataset_size + (options_.drop_last ? 0 : replicas - 1)) / replicas;
}

std::vector<std::vector<std::int64_t>> DistributedSampler::batches(std::int64_t batch_size,
                                                                   bool drop_last_batch,
                                                                   Place place) const {
  if (batch_size <= 0)
    throw UsageError("DistributedSampler::batches: batch_size must be above 0, found " +
                     std::to_string(batch_size) + ".");
  const auto all = indices();
  batch_size *= joined_by(options_);
  const auto count = static_cast<std::int64_t>(all.size());
  std::vector<std::vector<std::int64_t>> result;
  for (std::int64_t begin = 0; begin < count; begin += batch_size) {
    const std::int64_t end = std::min(begin + batch_size, count);
    if (drop_last_batch && end - begin < batch_size) break;
    result.emplace_back(all.begin() + begin, all.begin() + end);
  }
  tell_pass(*epoch_, options_.dataset_size, result, place);
  return result;
}

void tell_pass(std::int64_t epoch, std::int64_t dataset_size,
               const std::vector<std::vector<std::int64_t>>& batches, Place place) {
  tell_began("pass", place);
  tell([&](Observer& to) {
    to.pass_begins(epoch, dataset_size);
    for (const auto& batch : batches) to.dealt(batch);
    to.pass_dealt();
  });
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  auto options = options_;
  if (new_size) options.dataset_size = static_cast<std::int64_t>(*new_size);
  check(options);
  options_ = options;
  // A loader resets its sampler before the first pass, which must not undo the load.
  if (!loaded_ || *epoch_ != order_epoch_) first_ = 0;
  loaded_ = false;
  order_epoch_ = *epoch_;
  order_ = shard(options_, order_epoch_, first_);
  next_ = 0;
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  if (batch_size == 0)
    throw UsageError("DistributedSampler::next: batch_size must be above 0, found 0.");
  if (next_ >= order_.size()) {
    tell([&](Observer& to) {
      if (order_.empty()) to.pass_begins(order_epoch_, options_.dataset_size);
      to.pass_dealt();
    });
    return std::nullopt;
  }
  batch_size *= static_cast<std::size_t>(joined_by(options_));
  const auto end = next_ + std::min(batch_size, order_.size() - next_);
  std::vector<std::size_t> batch(order_.begin() + static_cast<std::ptrdiff_t>(next_),
                                 order_.begin() + static_cast<std::ptrdiff_t>(end));
  tell([&](Observer& to) {
    if (next_ == 0) to.pass_begins(order_epoch_, options_.dataset_size);
    to.dealt({batch.begin(), batch.end()});
  });
  next_ = end;
  loaded_ = false;
  return batch;
}

Value DistributedSampler::state_dict() const {
  // A pass that was drawn from; else the next one, from its beginning.
  const bool finished = next_ == order_.size() && *epoch_ != order_epoch_;
  const bool under_way = (first_ > 0 || next_ > 0) && !finished;
  const auto drawn = first_ + static_cast<std::int64_t>(next_) * options_.num_replicas;
  return Value::Dict{{"epoch", under_way ? order_epoch_ : *epoch_},
                     {"samples", under_way ? drawn : 0},
                     {"dataset_size", options_.dataset_size},
                     {"num_replicas", options_.num_replicas},
                     {"shuffle", options_.shuffle},
                     {"seed", static_cast<std::int64_t>(options_.seed)},
                     {"drop_last", options_.drop_last}};
}

void DistributedSampler::load_state_dict(const Value& state) {
  const Value own = state_dict();
  const auto text = [](const Value& value) {
    return value.is_bool() ? std::string(value.as_bool() ? "true" : "false")
                           : std::to_string(value.as_int());
  };
  for (const char* name : {"dataset_size", "shuffle", "seed", "drop_last"})
    if (const auto found = text(state.at(name)), wanted = text(own.at(name)); found != wanted)
      throw Error("DistributedSampler::load_state_dict: saved with " + std::string(name) + " " +
                  found + ", but this sampler has " + wanted +
                  "; a position in the one means nothing in the other.");
  const auto samples = state.at("samples").as_int();
  const auto replicas = state.at("num_replicas").as_int();
  // The ranks that saved may have padded the epoch's end, so their position may lie behind it.
  if (samples < 0 || replicas < 1 || samples - options_.dataset_size >= replicas)
    throw Error("DistributedSampler::load_state_dict: expected a position of 0 to " +
                std::to_string(options_.dataset_size) + " samples, found " +
                std::to_string(samples) + " of " + std::to_string(replicas) + " ranks.");
  set_epoch(state.at("epoch").as_int());
  first_ = std::min(samples, options_.dataset_size);
  loaded_ = true;
  order_epoch_ = *epoch_;
  reset();
  loaded_ = true;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  const auto state = state_dict();
  for (const auto& [name, value] : state.as_dict())
    archive.write(name.text(),
                  torch::tensor(value.is_bool() ? std::int64_t{value.as_bool()} : value.as_int()),
                  /*is_buffer=*/true);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  Value::Dict state = state_dict().as_dict();
  for (const auto& [name, own] : Value::Dict(state)) {
    at::Tensor saved;
    archive.read(name.text(), saved, /*is_buffer=*/true);
    const auto number = saved.item<std::int64_t>();
    state[name] = own.is_bool() ? Value(number != 0) : Value(number);
  }
  if (const auto replicas = state.at("num_replicas").as_int(); replicas != options_.num_replicas)
    throw Error("DistributedSampler::load: saved with num_replicas " + std::to_string(replicas) +
                ", but this sampler has " + std::to_string(options_.num_replicas) +
                "; load_state_dict() can go on with another number of ranks.");
  load_state_dict(state);
}

}  // namespace lockstep
