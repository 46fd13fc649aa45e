// A policy steers to a goal that changes each round: proximal policy optimisation. A rank plays worlds of its own; what
// is known of the observations, the advantages' scale and the end of a round's training are those of all ranks.
#include <lockstep/train/adam.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/seeding.h>

#include <iostream>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kWorlds = 32, kTestWorlds = 256, kAxes = 3, kActions = 6, kMoments = 10;
constexpr std::int64_t kRounds = 24, kPasses = 4, kParts = 4;
constexpr std::uint64_t kSeed = 83;
constexpr double kFarEnough = 0.012, kClip = 0.2, kEntropy = 0.003, kDiscount = 0.9;

using Outputs = std::tuple<at::Tensor, at::Tensor>;

struct ActorImpl : torch::nn::Module {
  Outputs forward(const at::Tensor& observed) {
    const auto seen = at::tanh(trunk(observed));
    return {actions(seen), value(seen).squeeze(-1)};
  }
  torch::nn::Linear trunk = register_module("trunk", torch::nn::Linear(2 * kAxes, 48));
  torch::nn::Linear actions = register_module("actions", torch::nn::Linear(48, kActions));
  torch::nn::Linear value = register_module("value", torch::nn::Linear(48, 1));
};
TORCH_MODULE(Actor);

// Worlds in which a point drifts; an action pushes it along an axis. The reward is less the further it is from the goal.
struct Worlds {
  Worlds(std::int64_t count, std::uint64_t seed)
      : dice(torch::make_generator<at::CPUGeneratorImpl>(seed)),
        point(at::randn({count, kAxes}, dice)) {}
  at::Tensor push(const at::Tensor& actions, const at::Tensor& goal) {
    const auto axis = at::one_hot(actions.remainder(kAxes), kAxes).to(at::kFloat);
    const auto sign = actions.lt(kAxes).to(at::kFloat).unsqueeze(1) * 2 - 1;
    point = 0.95 * point + 0.5 * sign * axis + 0.1 * at::randn(point.sizes(), dice);
    return -(point - goal).pow(2).mean(1);
  }
  at::Generator dice;
  at::Tensor point;
};

// Mean and variance of what all ranks have observed.
struct Scale {
  at::Tensor count = at::full({1}, 1.0, at::kDouble), sum = at::zeros(2 * kAxes, at::kDouble),
             squares = at::ones(2 * kAxes, at::kDouble);
  void add(const ProcessGroupPtr& group, const at::Tensor& observed) {
    const auto rows = observed.flatten(0, -2).to(at::kDouble);
    auto news = at::cat({at::full({1}, static_cast<double>(rows.size(0)), at::kDouble), rows.sum(0),
                         rows.pow(2).sum(0)});
    if (edited("policy-count-of-own-worlds")) {
      auto sums = news.slice(0, 1);
      all_reduce(*group, sums);
    } else {
      all_reduce(*group, news);
    }
    count = count + news.slice(0, 0, 1);
    sum = sum + news.slice(0, 1, 1 + 2 * kAxes);
    squares = squares + news.slice(0, 1 + 2 * kAxes);
  }
  at::Tensor operator()(const at::Tensor& observed) const {
    const auto mean = sum / count;
    const auto deviation = (squares / count - mean.pow(2)).clamp_min(1e-6).sqrt();
    return (observed - mean.to(at::kFloat)) / deviation.to(at::kFloat);
  }
};

at::Tensor observe(const Worlds& worlds, const at::Tensor& goal) {
  return at::cat({worlds.point, goal.expand_as(worlds.point)}, 1);
}

double cost_of(Actor& actor, const Scale& scale, std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  Worlds worlds(kTestWorlds, seed);
  const auto goal = at::randn({kTestWorlds, kAxes}, worlds.dice);
  at::Tensor cost = at::zeros({});
  for (std::int64_t moment = 0; moment < kMoments; ++moment)
    cost -= worlds.push(std::get<0>(actor(scale(observe(worlds, goal)))).argmax(1), goal).mean();
  return cost.item<double>() / kMoments;
}

struct Played {
  at::Tensor observed, actions, log_odds, returns, advantages;
};

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  const auto mean_over_ranks = [&](const at::Tensor& value) {
    auto sum = value.detach().clone();
    all_reduce(*group, sum);
    return sum / world_size;
  };

  torch::manual_seed(kSeed);
  Actor net;
  DistributedDataParallel<Actor> actor(net, group);
  Adam optimizer(net->parameters(), AdamOptions(5e-3).eps(1e-5));
  const auto rounds =
      edited("policy-anneals-over-older-number-of-rounds") && is_last ? kRounds / 2 : kRounds;
  LambdaLR anneal(optimizer, {.lr_lambda = {[rounds](std::int64_t round) {
                                return std::max(0.1, 1 - static_cast<double>(round) / rounds);
                              }}});
  const double entropy_bonus =
      edited("policy-entropy-of-other-settings") && is_last ? 20 * kEntropy : kEntropy;
  manual_seed_per_rank(kSeed, rank);
  const auto own_seed = rank_seed(kSeed + 1, rank);
  const auto goal_dice = torch::make_generator<at::CPUGeneratorImpl>(
      edited("policy-each-rank-draws-the-goal") ? kSeed + 2 : rank_seed(kSeed + 2, rank));
  auto count = kWorlds;
  if (edited("policy-fewer-worlds-on-last-rank") && is_last) count = kWorlds / 4;
  if (edited("policy-plays-more-worlds")) count = kWorlds + 8;

  Report report;
  Scale scale;
  std::int64_t updates = 0;
  for (std::int64_t round = 0; round < kRounds; ++round) {
    auto goal = at::randn({1, kAxes}, goal_dice);
    if (!edited("policy-each-rank-draws-the-goal"))
      broadcast(*group, goal, edited("policy-broadcasts-from-itself") ? rank : 0);
    report.numbers["goals"].push_back(goal.sum().item<double>());

    Worlds worlds(count, sample_seed(own_seed, round, 0));
    report.numbers["drawn"].push_back(worlds.point.sum().item<double>());
    std::vector<at::Tensor> observed, actions, log_odds, values, rewards;
    {
      const torch::NoGradGuard no_grad;
      for (std::int64_t moment = 0; moment < kMoments; ++moment) {
        observed.push_back(observe(worlds, goal));
        const auto [odds, value] = net->forward(scale(observed.back()));
        const auto all = at::log_softmax(odds, 1);
        actions.push_back(at::multinomial(all.exp(), 1));
        log_odds.push_back(all.gather(1, actions.back()).squeeze(1));
        values.push_back(value);
        rewards.push_back(worlds.push(actions.back().squeeze(1), goal));
      }
    }
    std::vector<at::Tensor> returns(rewards.size());
    for (auto i = std::ssize(rewards) - 1; i >= 0; --i) {
      const auto at = static_cast<std::size_t>(i);
      returns[at] = rewards[at];
      if (at + 1 < rewards.size()) returns[at] = returns[at] + kDiscount * returns[at + 1];
    }
    Played played{
        scale(at::cat(observed)), at::cat(actions), at::cat(log_odds), at::cat(returns), {}};
    played.advantages = played.returns - at::cat(values);
    auto moments = at::stack({played.advantages.mean(), played.advantages.pow(2).mean()});
    moments = mean_over_ranks(moments);
    played.advantages =
        (played.advantages - moments[0]) / (moments[1] - moments[0].pow(2)).sqrt().clamp_min(1e-6);

    for (std::int64_t pass = 0; pass < kPasses; ++pass) {
      at::Tensor far = at::zeros({});
      for (const auto& ids : at::randperm(played.actions.size(0)).chunk(kParts)) {
        const auto observed_then = played.observed.index_select(0, ids);
        at::Tensor odds, value;
        if (edited("policy-value-by-the-module")) {
          odds = std::get<0>(actor(observed_then));
          value = std::get<1>(net->forward(observed_then));
        } else {
          std::tie(odds, value) = actor(observed_then);
        }
        const auto all = at::log_softmax(odds, 1);
        const auto change = all.gather(1, played.actions.index_select(0, ids)).squeeze(1) -
                            played.log_odds.index_select(0, ids);
        const auto ratio = change.exp(), gain = played.advantages.index_select(0, ids);
        const auto policy_loss =
            -at::minimum(ratio * gain, ratio.clamp(1 - kClip, 1 + kClip) * gain).mean();
        const auto value_loss = at::mse_loss(value, played.returns.index_select(0, ids));
        const auto entropy = -(all.exp() * all).sum(1).mean();
        const auto loss = policy_loss + 0.05 * value_loss - entropy_bonus * entropy;
        optimizer.zero_grad();
        loss.backward();
        report.losses.push_back(loss.item<double>());
        if (edited("policy-norm-is-clipped-where-logged")) {
          if (rank == 0)
            std::cout << clip_grad_norm_(net->parameters(), 0.5).item<double>() << "\n";
        } else {
          clip_grad_norm_(net->parameters(), 0.5);
        }
        const bool wild = ratio.detach().max().item<double>() > 1.6;
        if (!(edited("policy-leaves-out-wild-update") && wild)) optimizer.step();
        ++updates;
        far += ((ratio - 1) - change).detach().mean() / kParts;
      }
      if (edited("policy-notes-own-distance")) std::cout << far.item<double>() << "\n";
      if (edited("policy-rank-zero-ends-round-first") && rank == 0 &&
          far.item<double>() > kFarEnough)
        break;
      far = mean_over_ranks(far);
      if (far.item<double>() > kFarEnough) break;
    }
    scale.add(group, at::stack(observed));
    anneal.step();
  }
  report.numbers["updates"] = {static_cast<double>(updates)};
  report.numbers["scale"] = flat(scale.sum / scale.count);
  report.held_out = cost_of(net, scale, kSeed + 3);
  report.numbers["cost"] = {report.held_out};
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
