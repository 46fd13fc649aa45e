// Lesson 11, part "ending": the first rank's shard is longer by a batch.
//
// Concept:  every backward of DDP is a collective, so all ranks must run equally many. A rank that
//           is done stays and takes part with zeros (join), or all agree beforehand when to end.
// Symptom:  the rank with a batch more waits in backward for ranks that have gone on. Their next
//           epoch's first backward matches it, so nothing stops yet, but batches of two epochs are
//           mixed. In the end they leave, and it waits until the operation times out.
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/agreement.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/models.h>
#include <lockstep/train/watched.h>

#include <optional>

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kBatches = 3;  // of a rank; the first one has another
constexpr int kEpochs = 2;
constexpr double kLearningRate = 0.05;
constexpr std::chrono::seconds kPatience{4};  // for what would hang

// The ids of a rank's batch: empty behind the end of its shard.
std::vector<std::int64_t> batch_of(int rank, std::int64_t number) {
  const std::int64_t shard = rank == 0 ? 0 : rank * kBatches + 1;  // batches of the ranks before it
  if (number < (rank == 0 ? kBatches + 1 : kBatches)) return global_batch(shard + number, kBatch);
  return {};
}

void train(RankContext& context, const Fault& fault) {
  const int rank = context.rank(), world_size = context.world_size();
  context.intent({.loss_reduction = "mean"});
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * (kBatches * world_size + 1));
  Mlp module(784, 64, 10);
  module->to(context.device());
  DistributedDataParallel<Mlp> model(module, context.group());
  SGD optimizer(model.parameters(), kLearningRate);

  std::int64_t count = rank == 0 ? kBatches + 1 : kBatches;
  // Near misses: nobody joins, and the ranks agree, on the fewest batches or on empty ones for the
  // rest.
  if (fault("near-miss-agreed-count")) {
    count = all_agree(*context.group(), count).least;
  } else if (fault("near-miss-empty-batches")) {
    count = all_agree(*context.group(), count).most;
  }
  std::vector<std::vector<std::int64_t>> batches;
  for (std::int64_t number = 0; number < count; ++number) batches.push_back(batch_of(rank, number));

  const auto pass = [&] {
    for (const auto& ids : batches) {
      const auto batch = take(data, ids);
      optimizer.zero_grad();
      const auto outputs = model(batch.inputs.to(context.device()));
      const auto each = cross_entropy(outputs, batch.targets.to(context.device()));
      (each.sum() / kBatch).backward();  // of an empty batch: 0, where a mean is NaN
      optimizer.step();
    }
  };
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    tell_pass(epoch, data.size(), batches);
    if (fault("uneven-batches")) {
      context.group()->setTimeout(kPatience);
      pass();
    } else if (fault("near-miss-agreed-count") || fault("near-miss-empty-batches")) {
      pass();
    } else {
      join({model.engine()}, pass);
    }
  }
}

// Beside it one process trains on all ranks' batches. A rank that has none left adds a gradient of
// zero.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault& fault)
      : Notes(job),
        steps_(fault("near-miss-agreed-count") ? kBatches : kBatches + 1),
        data_(
            fashion_mnist_or_synthetic(Split::train, kBatch * (kBatches * job.world_size() + 1))) {}

  void wrapped(torch::nn::Module& module, const std::string&) override {
    one_process_ = Mlp(784, 64, 10);
    copy_parameters(module, *one_process_);
    optimizer_.emplace(one_process_->parameters(), kLearningRate);
  }
  void pass_begins(std::int64_t epoch, std::int64_t dataset_size) override {
    end_epoch();
    Notes::pass_begins(epoch, dataset_size);
  }
  void dealt(const std::vector<std::int64_t>& ids) override {
    Notes::dealt(ids);
    ++to_train_;
    in_epoch_ = true;
  }
  void update_ended(torch::optim::Optimizer& optimizer) override {
    Notes::update_ended(optimizer);
    --to_train_;
  }
  void finish() override {
    if (to_train_ > 0) return;  // the epoch was broken off
    Notes::finish();
    end_epoch();
  }

 private:
  // An epoch is over when the next one begins: ranks that join get their weights after the last
  // update.
  void end_epoch() {
    if (!in_epoch_) return;
    in_epoch_ = false;
    Mean loss;
    for (std::int64_t number = 0; number < steps_; ++number) train_on(number, loss);
    add_figure(context(), "distance",
               relative_distance(flat_parameters(parameters()), flat_parameters(*one_process_)));
    context().outcome().reference_losses.push_back(loss.value());
  }
  void train_on(std::int64_t number, Mean& loss) {
    optimizer_->zero_grad();
    for (int rank = 0; rank < context().world_size(); ++rank) {
      const auto theirs = rows_of(data_, batch_of(rank, number));
      const auto each = torch::cross_entropy_loss(one_process_->forward(theirs.inputs),
                                                  theirs.targets, {}, at::Reduction::None);
      (each.sum() / (kBatch * context().world_size())).backward();
      loss.add(each);
    }
    optimizer_->step();
  }

  std::int64_t steps_;  // of an epoch
  TensorData data_;
  Mlp one_process_{nullptr};
  std::optional<torch::optim::SGD> optimizer_;
  std::int64_t to_train_ = 0;  // batches of this rank's epoch
  bool in_epoch_ = false;
};

// The number of epochs that a rank ended with the weights of one process; the smallest counts.
Measured right_epochs(const Outcomes& outcomes) {
  double fewest = kEpochs;
  for (const auto& outcome : outcomes) {
    double right = 0;
    if (const auto found = outcome.figures.find("distance"); found != outcome.figures.end())
      for (const double distance : found->second) right += distance < 1e-4 ? 1 : 0;
    fewest = std::min(fewest, right);
  }
  return {.expected = kEpochs, .observed = fewest, .tolerance = 0};
}

}  // namespace

lockstep::Part ending_part() {
  return {
      .name = "ending",
      .run = train,
      .broken = {{.slug = "uneven-batches",
                  .what = "the first rank has a batch more, and the others do not stay for it",
                  .oracle = {"epochs ended with one process's weights, by the slowest rank",
                             right_epochs},
                  .crashes = true}},
      .near_misses = {{.name = "near-miss-agreed-count",
                       .slug = "uneven-batches",
                       .naive_check = "the ranks' shards have unequal numbers of batches"},
                      {.name = "near-miss-empty-batches",
                       .slug = "uneven-batches",
                       .naive_check = "a rank has drawn all its samples, and others draw more"}},
      .notes = notes<OwnNotes>};
}
