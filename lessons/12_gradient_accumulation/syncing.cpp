// Lesson 12, part "syncing": when the ranks talk. Four microbatches for one update.
//
// Concept:  backward() adds to .grad, so one update may follow several of them, and only the last
//           needs the other ranks. NoSync tells the engine so. The engine looks when forward()
//           runs: there it arms the reduction that backward() then carries out.
// Symptom:  none in the weights, which come out the same up to rounding. Without NoSync, or with
//           one that begins after forward(), every backward reduces: G times the communication.
#include <lockstep/lesson/batches.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/models.h>
#include <lockstep/train/watched.h>

#include <optional>

namespace {

using namespace lockstep;

constexpr std::int64_t kBatch = 16;       // per rank and microbatch
constexpr std::int64_t kAccumulated = 4;  // microbatches an update: G
constexpr std::int64_t kUpdates = 4;

// A near miss: a bucket for each of the four parameters, so four all-reduces for one reduction.
// The first reduction still has one bucket: DDP rebuilds its buckets after it.
DdpOptions many_buckets() {
  DdpOptions options;
  options.bucket_cap_mb = 0.00002;
  return options;
}

// A near miss: a collective inside no_sync, for every microbatch; but not of the gradients.
void reduce_for_the_log(c10d::ProcessGroup& group, const at::Tensor& loss) {
  auto shown = loss.detach().clone();
  all_reduce(group, shown);
}

void train(RankContext& context, const Fault& fault) {
  const int rank = context.rank(), world_size = context.world_size();
  context.intent({.global_batch = kBatch * kAccumulated * world_size, .loss_reduction = "mean"});
  const auto data =
      fashion_mnist_or_synthetic(Split::train, kBatch * kAccumulated * kUpdates * world_size);
  Mlp module(784, 64, 10);
  module->to(context.device());
  DistributedDataParallel<Mlp> model(
      module, context.group(), fault("near-miss-many-buckets") ? many_buckets() : DdpOptions{});
  SGD optimizer(model.parameters(), 0.01);

  for (std::int64_t update = 0; update < kUpdates; ++update) {
    optimizer.zero_grad();
    for (std::int64_t part = 0; part < kAccumulated; ++part) {
      const auto everyone = global_batch(update * kAccumulated + part, kBatch * world_size);
      const auto batch = take(data, share_of(rank, world_size, everyone));
      const auto inputs = batch.inputs.to(context.device());

      std::optional<NoSync> no_sync;  // while it lives, forward() arms no reduction
      at::Tensor outputs;
      if (fault("sync-every-microbatch")) {
        outputs = model(inputs);
      } else if (fault("no-sync-around-backward-only")) {
        outputs = model(inputs);
        // The reduction is armed; this comes too late.
        if (part + 1 < kAccumulated) no_sync.emplace(model.engine());
      } else {
        if (part + 1 < kAccumulated) no_sync.emplace(model.engine());
        outputs = model(inputs);
      }
      const auto each = cross_entropy(outputs, batch.targets.to(context.device()));
      const auto loss = each.mean() / kAccumulated;
      loss.backward();
      if (fault("near-miss-loss-logged")) reduce_for_the_log(*context.group(), loss);
    }
    optimizer.step();
  }
}

// Counts the collectives that this rank enters inside an update's backwards, as the backend does.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&) : Notes(job) {}

  void loss(const at::Tensor& per_sample, const at::Tensor& outputs,
            const at::Tensor& targets) override {
    Notes::loss(per_sample, outputs, targets);
    // The hook runs before this backward reaches any parameter, its callback when it is over.
    per_sample.register_hook([this](const at::Tensor&) {
      torch::autograd::Engine::get_default_engine().queue_callback([this, before = entered()] {
        in_last_ = entered() - before;
        in_all_ += in_last_;
      });
    });
  }
  void update_begins(torch::optim::Optimizer&) override {
    add_figure(context(), "reductions", in_all_ / in_last_);
    in_all_ = 0;
  }

 private:
  double entered() {
    const auto backend = context().group()->getDefaultBackend();
    return static_cast<double>(backend->getSequenceNumberForGroup());
  }

  double in_all_ = 0, in_last_ = 0;
};

// The last backward of an update reduces everything once.
Measured reductions(const Outcomes& outcomes) {
  return {.expected = 1, .observed = largest(outcomes, "reductions"), .tolerance = 0};
}

}  // namespace

lockstep::Part syncing_part() {
  const Oracle oracle{"all-reduces of an update over those of its last backward", reductions};
  return {.name = "syncing",
          .run = train,
          .broken = {{.slug = "sync-every-microbatch",
                      .what = "no NoSync: every microbatch's backward reduces",
                      .oracle = oracle},
                     {.slug = "no-sync-around-backward-only",
                      .what = "NoSync begins after forward, which has armed the reduction",
                      .oracle = oracle}},
          .near_misses = {{.name = "near-miss-many-buckets",
                           .slug = "sync-every-microbatch",
                           .naive_check = "an update has as many all-reduces as microbatches"},
                          {.name = "near-miss-loss-logged",
                           .slug = "no-sync-around-backward-only",
                           .naive_check = "collectives run while no_sync is on"}},
          .notes = notes<OwnNotes>};
}
