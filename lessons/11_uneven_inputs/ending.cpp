// Lesson 11, part "ending": the first rank's shard is longer by a batch.
//
// Concept:  every backward of DDP is a collective, so all ranks must run equally many. A rank that
//           is done stays and takes part with zeros (join), or all agree beforehand when to end.
// Symptom:  the rank with a batch more waits in backward for ranks that have gone on. Their next
//           epoch's first backward matches it, so nothing stops yet, but batches of two epochs are
//           mixed. In the end they leave, and it waits until the operation times out.
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/train/agreement.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/models.h>

#include "parts.h"

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kBatches = 3;  // of a rank; the first one has another
constexpr int kEpochs = 2;
constexpr double kLearningRate = 0.05;
constexpr std::chrono::seconds kPatience{4};  // for what would hang

// The ids of a rank's batch; none beyond the end of its shard.
std::vector<std::int64_t> batch_of(int rank, std::int64_t number) {
  const std::int64_t shard = rank == 0 ? 0 : rank * kBatches + 1;  // batches of the ranks before it
  std::vector<std::int64_t> ids;
  if (number < (rank == 0 ? kBatches + 1 : kBatches))
    for (std::int64_t i = 0; i < kBatch; ++i) ids.push_back((shard + number) * kBatch + i);
  return ids;
}

void train(RankContext& context, const Fault& fault) {
  const int world_size = context.world_size();
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * (kBatches * world_size + 1));
  Mlp module(784, 64, 10), reference(784, 64, 10);
  module->to(context.device());
  auto& probes = context.probes();
  probes.intent({.loss_reduction = "mean"});
  probes.dataset("train", data.inputs, data.targets, all_ids(data.size()), data.size());
  probes.attach(*module);
  DistributedDataParallel<Mlp> model(module, context.group());
  probes.engine("distributed_data_parallel");
  copy_parameters(*module, *reference);
  torch::optim::SGD optimizer(model.parameters(), kLearningRate);
  torch::optim::SGD reference_optimizer(reference->parameters(), kLearningRate);
  probes.start();

  const std::int64_t mine = context.rank() == 0 ? kBatches + 1 : kBatches;
  std::int64_t batches = mine;
  // Near misses: nobody joins, and the ranks agree, on the fewest batches or on empty ones for the rest.
  const bool fewest = fault("near-miss-agreed-count");
  const bool pads = fault("near-miss-empty-batches");
  if (fewest || pads) {
    const auto agreed = all_agree(*context.group(), mine);
    batches = fewest ? agreed.least : agreed.most;
  }

  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    Mean loss_of_epoch, loss_of_reference, accuracy;
    const auto pass = [&] {
      probes.pass_begin("train", epoch);
      for (std::int64_t number = 0; number < batches; ++number) {
        const auto ids = batch_of(context.rank(), number);
        probes.samples("train", ids);
        const auto batch = take(data, ids);
        optimizer.zero_grad();
        const auto outputs = model(batch.inputs.to(context.device()));
        const auto each = torch::cross_entropy_loss(outputs, batch.targets.to(context.device()), {},
                                                    at::Reduction::None);
        const auto loss = each.sum() / kBatch;  // of an empty batch: 0, where a mean is NaN
        probes.loss(loss, each);
        loss.backward();
        probes.gradients_ready();
        optimizer.step();
        probes.updated(optimizer);
        loss_of_epoch.add(each);
        accuracy.add(outputs.argmax(1).cpu() == batch.targets);
      }
      probes.pass_end("train", epoch, batches);
    };
    if (fault("uneven-batches")) {  // PITFALL uneven-batches
      context.group()->setTimeout(kPatience);
      pass();
    } else if (fewest || pads) {
      pass();
    } else {
      join({model.engine()}, pass);
    }

    // One process: a rank without a batch counts as one whose gradient is zero.
    for (std::int64_t number = 0; number < (fewest ? kBatches : kBatches + 1); ++number) {
      reference_optimizer.zero_grad();
      for (int rank = 0; rank < world_size; ++rank) {
        const auto theirs = take(data, batch_of(rank, number));
        const auto each = torch::cross_entropy_loss(reference->forward(theirs.inputs),
                                                    theirs.targets, {}, at::Reduction::None);
        (each.sum() / (kBatch * world_size)).backward();
        loss_of_reference.add(each);
      }
      reference_optimizer.step();
    }
    add_figure(context, "distance",
               relative_distance(flat_parameters(*module), flat_parameters(*reference)));
    context.outcome().losses.push_back(loss_of_epoch.value());
    context.outcome().reference_losses.push_back(loss_of_reference.value());
    context.outcome().accuracy.push_back(accuracy.value());
  }
}

// Of the rank with the fewest: epochs that it ended with the weights of one process.
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
                       .naive_check = "a rank has drawn all its samples, and others draw more"}}};
}
