// Ratings of items by users. A rank has the users of a region, so ranks have unequal numbers of batches: Join. The
// weights that validated best are kept.
#include <lockstep/checkpoint/joined_optimizer.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/join.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/seeding.h>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kUsers = 60, kItems = 50, kCodes = 400, kCapacity = 64, kFactors = 6;
constexpr std::int64_t kRatings = 1600, kTestRatings = 400, kBatch = 40, kEpochs = 4;
constexpr std::uint64_t kSeed = 80;

struct Ratings {
  at::Tensor user, code, value;
  Ratings at(const at::Tensor& rows) const {
    return {user.index_select(0, rows), code.index_select(0, rows), value.index_select(0, rows)};
  }
};

// The later users cannot buy the first items.
Ratings make_ratings(std::int64_t count, std::uint64_t seed) {
  const auto tastes = torch::make_generator<at::CPUGeneratorImpl>(kSeed);
  const auto of_user = at::randn({kUsers, 3}, tastes), of_item = at::randn({kItems, 3}, tastes);
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto user = (kUsers * at::rand({count}, dice).pow(1.5)).to(at::kLong);
  const auto lowest = 10 * (user >= kUsers / 2).to(at::kFloat);
  const auto item = (lowest + (kItems - lowest) * at::rand({count}, dice).pow(2)).to(at::kLong);
  const auto value = (of_user.index_select(0, user) * of_item.index_select(0, item)).sum(1) +
                     0.3 * at::randn({count}, dice);
  return {user, 7 * item, value};
}

struct FactorsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& users, const at::Tensor& items) {
    return (user(users) * item(items)).sum(1) + (user_bias(users) + item_bias(items)).squeeze(1);
  }
  torch::nn::Embedding table(const std::string& name, std::int64_t rows, std::int64_t width) {
    auto made = register_module(name, torch::nn::Embedding(rows, width));
    const torch::NoGradGuard no_grad;
    made->weight.mul_(width == 1 ? 0 : 0.5);
    return made;
  }
  torch::nn::Embedding user = table("user", kUsers, kFactors);
  torch::nn::Embedding item = table("item", kCapacity, kFactors);
  torch::nn::Embedding user_bias = table("user_bias", kUsers, 1);
  torch::nn::Embedding item_bias = table("item_bias", kCapacity, 1);
};
TORCH_MODULE(Factors);

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  Report report;
  const auto ratings = make_ratings(kRatings, kSeed + 1),
             test = make_ratings(kTestRatings, kSeed + 2);
  auto region = (ratings.user * world_size).floor_divide(kUsers);
  if (edited("recommender-first-region-for-last-rank")) region = world_size - 1 - region;
  const auto mine = edited("recommender-takes-lower-regions") ? region <= rank : region == rank;
  const auto rows = mine.nonzero().squeeze(1);

  // Codes of the items that anybody rated get the places of a table.
  const auto own_codes = ratings.code.index_select(0, rows);
  auto counts = at::bincount(own_codes, {}, kCodes).to(at::kFloat);
  const auto own_counts = counts.clone();
  if (!edited("recommender-vocabulary-of-own-items")) all_reduce(*group, counts);
  const auto place_of_code = ((counts > 0).cumsum(0) - 1).clamp_min(0);
  report.numbers["places"] = flat(place_of_code);
  const auto places = [&](const at::Tensor& code) { return place_of_code.index_select(0, code); };

  torch::manual_seed(kSeed);
  Factors net;
  const auto begin_with_popularity = [&](const at::Tensor& known) {
    const torch::NoGradGuard no_grad;
    const auto codes = (known > 0).nonzero().squeeze(1);
    net->item_bias->weight.index_copy_(0, places(codes),
                                       0.1 * known.index_select(0, codes).log().unsqueeze(1));
  };
  const bool late = edited("recommender-popularity-set-after-wrapping");
  const bool late_own = edited("recommender-own-popularity-after-wrapping");
  if (!late && !late_own) begin_with_popularity(counts);
  DistributedDataParallel<Factors> model(
      net, group, {.bucket_cap_mb = edited("recommender-small-buckets") ? 0.001 : -1});
  if (late) begin_with_popularity(counts);
  if (late_own) begin_with_popularity(own_counts);
  if (edited("recommender-table-replaced-after-wrapping"))
    net->item = net->replace_module("item", torch::nn::Embedding(kCapacity, kFactors));
  const double rate = edited("recommender-rate-on-last-rank") && is_last ? 0.01 : 0.08;
  Adam optimizer(edited("recommender-optimizer-misses-biases")
                     ? std::vector<at::Tensor>{net->user->weight, net->item->weight}
                     : net->parameters(),
                 {rate});
  CosineAnnealingLR schedule(optimizer, {.T_max = kEpochs});
  JoinedOptimizer joined(optimizer, group);

  double best = INFINITY;
  std::vector<at::Tensor> best_weights;
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(rank_seed(kSeed, rank));
  const auto epochs =
      edited("recommender-more-epochs-on-last-rank") && is_last ? kEpochs + 1 : kEpochs;
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    const auto order = edited("recommender-order-by-epoch")
                           ? at::randperm(rows.size(0), torch::make_generator<at::CPUGeneratorImpl>(
                                                            kSeed + std::uint64_t(epoch)))
                           : at::randperm(rows.size(0), dice);
    const auto ids = rows.index_select(0, order);
    report.seen.emplace_back(ids.data_ptr<std::int64_t>(),
                             ids.data_ptr<std::int64_t>() + ids.size(0));
    const auto pass = [&] {
      for (const auto& batch_ids : ids.split(kBatch)) {
        const auto batch = ratings.at(batch_ids);
        optimizer.zero_grad();
        const auto score = model(batch.user, places(batch.code));
        auto loss = tell_loss((score - batch.value).pow(2), score, batch.value).mean();
        if (edited("recommender-halves-loss")) loss = loss / 2;
        loss.backward();
        optimizer.step();
        if (edited("recommender-schedule-in-batch-loop")) schedule.step();
        auto logged = loss.detach().clone();
        if (edited("recommender-logs-mean-loss")) all_reduce(*group, logged);
        report.losses.push_back(logged.item<double>());
      }
    };
    if (edited("recommender-without-join"))
      pass();
    else if (edited("recommender-joins-model-only"))
      join({model.engine()}, pass);
    else
      join({model.engine(), joined}, pass,
           {.divide_by_initial_world_size = !edited("recommender-divides-by-active-ranks"),
            .enable = !edited("recommender-join-disabled"),
            .throw_on_early_termination = edited("recommender-ends-with-first-rank")});
    if (!edited("recommender-schedule-in-batch-loop")) schedule.step();
    report.numbers["rate"] = schedule.get_last_lr();

    const torch::NoGradGuard no_grad;
    Mean error;
    const auto own_test = test.at(at::arange(rank, kTestRatings, world_size));
    error.add((net->forward(own_test.user, places(own_test.code)) - own_test.value).pow(2));
    if (!edited("recommender-best-by-own-error")) error = reduce_metric(*group, error);
    report.numbers["error"].push_back(error.value());
    if (error.value() < best) {
      best = error.value();
      best_weights.clear();
      for (const auto& parameter : net->parameters()) best_weights.push_back(parameter.clone());
    }
  }
  for (const auto& parameter : net->parameters())
    report.numbers["moments"].push_back(
        optimizer.state_of(parameter).empty()
            ? 0
            : optimizer.state_of(parameter).at("exp_avg_sq").as_tensor().sum().item<double>());
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < best_weights.size(); ++i) net->parameters()[i].copy_(best_weights[i]);
  report.held_out = best;
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
