// Lesson 16, part "evaluation": whose figure is it that you print?
//
// Concept:  each rank scores its own part of the test set. A figure of the whole is the sum of the
//           sums over the sum of the counts: reduce both, then divide.
// Symptom:  rank 0 prints the loss of its own samples only. Local hits over the global count are an
//           accuracy that falls as 1/W when ranks are added.
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/reference.h>
#include <lockstep/lesson/training.h>
#include <lockstep/train/distributed_sampler.h>

#include <algorithm>
#include <cmath>

namespace {

using namespace lockstep;

constexpr std::int64_t kTestSamples = 1'009;
constexpr std::int64_t kBatch = 64;

// The test set in the order of its classes, as one folder for each class gives it.
TensorData test_set() {
  const auto test = fashion_mnist_or_synthetic(Split::test, kTestSamples);
  const auto order = test.targets.argsort(/*stable=*/true);
  return {test.inputs.index_select(0, order), test.targets.index_select(0, order), test.phase};
}

// A contiguous piece of the test set for each rank.
std::vector<std::int64_t> part_of(int rank, int world_size) {
  const auto all = all_ids(kTestSamples);
  return {all.begin() + rank * kTestSamples / world_size,
          all.begin() + (rank + 1) * kTestSamples / world_size};
}

std::vector<std::vector<std::int64_t>> batches_of(const std::vector<std::int64_t>& samples) {
  std::vector<std::vector<std::int64_t>> batches;
  for (std::size_t begin = 0; begin < samples.size(); begin += kBatch)
    batches.emplace_back(samples.begin() + begin,
                         samples.begin() + std::min(begin + kBatch, samples.size()));
  return batches;
}

// [sum of losses, hits, samples] of a batch, added to `totals`.
void add_score(at::Tensor& totals, Mlp& model, const TensorData& batch) {
  const auto targets = batch.targets.to(totals.device());
  const auto outputs = model->forward(batch.inputs.to(totals.device()));
  totals[0] += torch::cross_entropy_loss(outputs, targets, {}, at::Reduction::Sum);
  totals[1] += (outputs.argmax(1) == targets).sum();
  totals[2] += static_cast<double>(batch.size());
}

// The totals over all these samples.
at::Tensor score(RankContext& context, Mlp& model, std::int64_t epoch,
                 const std::vector<std::int64_t>& samples) {
  const torch::NoGradGuard no_grad;
  const auto test = test_set();
  const auto batches = batches_of(samples);
  tell_pass(epoch, kTestSamples, batches);
  auto totals = at::zeros({3}, at::TensorOptions(at::kDouble).device(context.device()));
  for (const auto& ids : batches) add_score(totals, model, take(test, ids));
  return totals;
}

// A program writes these to its log. Here they go to the trace, and to the oracles.
void report(RankContext& context, const std::string& name, double sum, double count) {
  context.metric(name, "evaluation", sum, count);
  add_figure(context, name, sum / count);
  add_figure(context, name + "_sum", sum);
  add_figure(context, name + "_count", count);
}

// Rank 0 prints the loss. Every rank holds the accuracy, as it must to decide by it.
void evaluate(RankContext& context, const Fault& fault, Mlp& model, std::int64_t epoch) {
  const auto samples = fault("near-miss-everyone-scores-everything")
                           ? all_ids(kTestSamples)
                           : part_of(context.rank(), context.world_size());
  const auto own = score(context, model, epoch, samples);
  auto total = own.clone();
  if (fault("near-miss-everyone-scores-everything")) {
    // A near miss: costly, and right without a collective.
  } else {
    all_reduce(*context.group(), total);
  }

  const auto printed = fault("rank-zero-metric") ? own : total;
  if (fault("near-miss-every-rank-prints-its-own")) {
    // A near miss prints every rank's own loss, and says that it is.
    report(context, "loss", own[0].item<double>(), own[2].item<double>());
  } else if (context.rank() == 0) {
    report(context, "loss", printed[0].item<double>(), printed[2].item<double>());
  }

  const auto hits = fault("local-hits-global-count") ? own[1] : total[1];
  double count = total[2].item<double>();
  // A near miss takes the count from the data set: it is known, and need not be reduced.
  if (fault("near-miss-count-is-known")) count = kTestSamples;
  report(context, "accuracy", hits.item<double>(), count);
}

void train(RankContext& context, const Fault& fault) {
  const auto data = fashion_mnist_or_synthetic(Split::train, kBatch * 8 * context.world_size());
  DistributedSampler sampler({.dataset_size = data.size(),
                              .num_replicas = context.world_size(),
                              .rank = context.rank(),
                              .seed = context.seed()});
  Trainer trainer(context, data);
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    sampler.set_epoch(epoch);
    for (const auto& ids : sampler.batches(kBatch)) trainer.step(ids);
    evaluate(context, fault, trainer.module(), epoch);
  }
}

// Scores each rank's samples again, by a copy of the model.
class OwnNotes final : public Notes {
 public:
  OwnNotes(RankContext& job, const Fault&) : Notes(job) {}

  void optimizer_made(torch::optim::Optimizer& optimizer) override {
    Notes::optimizer_made(optimizer);
    copy_ = Mlp(784, 32, 10);  // after the ranks' model: both draw random numbers
    copy_->to(context().device());
  }
  void pass_begins(std::int64_t epoch, std::int64_t dataset_size) override {
    Notes::pass_begins(epoch, dataset_size);
    if (torch::GradMode::is_enabled()) return;
    copy_parameters(parameters(), copy_->parameters());
    seen_ = at::zeros({3}, at::TensorOptions(at::kDouble).device(context().device()));
  }
  void fetch(const Fetch& fetch) override {
    Notes::fetch(fetch);
    const torch::NoGradGuard no_grad;
    if (fetch.phase == "evaluation" && seen_.defined())
      add_score(seen_, copy_, rows_of({fetch.inputs, fetch.targets}, fetch.ids));
  }
  void finish() override {
    Notes::finish();
    if (!seen_.defined()) return;  // no evaluation was begun
    add_figure(context(), "own_loss", seen_[0].item<double>());
    add_figure(context(), "own_hits", seen_[1].item<double>());
    add_figure(context(), "own_count", seen_[2].item<double>());
    // The report shows an epoch's test accuracy.
    auto& outcome = context().outcome();
    outcome.accuracy = outcome.figures["accuracy"];
  }

 private:
  Mlp copy_{nullptr};
  at::Tensor seen_;  // in the last evaluation
};

// A figure's last value, added up over the ranks that have one.
double last_sum(const Outcomes& outcomes, const std::string& figure) {
  double sum = 0;
  for (const auto& outcome : outcomes)
    if (const auto found = outcome.figures.find(figure);
        found != outcome.figures.end() && !found->second.empty())
      sum += found->second.back();
  return sum;
}

Measured printed_loss(const Outcomes& outcomes) {
  const double all = last_sum(outcomes, "own_loss") / last_sum(outcomes, "own_count");
  const double printed = last_sum(outcomes, "loss_sum") / last_sum(outcomes, "loss_count");
  return {.expected = 0, .observed = std::abs(printed - all), .tolerance = 1e-9};
}

Measured accuracy(const Outcomes& outcomes) {
  const double all = last_sum(outcomes, "own_hits") / last_sum(outcomes, "own_count");
  const double held = last_sum(outcomes, "accuracy") / static_cast<double>(outcomes.size());
  return {.expected = 1, .observed = held / all, .tolerance = 1e-9};
}

}  // namespace

lockstep::Part evaluation_part() {
  return {.name = "evaluation",
          .run = train,
          .broken = {{.slug = "rank-zero-metric",
                      .what = "rank 0 prints the loss of its own part as the test loss",
                      .oracle = {"printed loss, distance from that of all samples", printed_loss}},
                     {.slug = "local-hits-global-count",
                      .what = "each rank divides its own hits by all ranks' samples",
                      .oracle = {"accuracy the ranks hold, over that of all samples", accuracy}}},
          .near_misses = {{.name = "near-miss-everyone-scores-everything",
                           .slug = "rank-zero-metric",
                           .naive_check = "rank 0 prints a figure that nothing was reduced for"},
                          {.name = "near-miss-every-rank-prints-its-own",
                           .slug = "rank-zero-metric",
                           .naive_check = "a printed loss counts one rank's samples only"},
                          {.name = "near-miss-count-is-known",
                           .slug = "local-hits-global-count",
                           .naive_check = "the count is not reduced with the hits"}},
          .notes = notes<OwnNotes>};
}
