// Heat a room, cool it, or wait? An actor and a critic learn it from rooms that each rank plays itself.
// The actor's steps on a round of play end when it has moved far enough. The ranks' gradients are summed
// by hand, and advantages and observations are normalised by what all ranks saw. The critic that judges
// play follows the trained one slowly.
#include <lockstep/dist/process_group.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kRooms = 24, kTestRooms = 50, kMoments = 12, kActions = 3, kSees = 3;
constexpr std::int64_t kRounds = 30, kMostSteps = 5, kHidden = 24;
constexpr std::uint64_t kSeed = 66;
constexpr double kDiscount = 0.9, kRatio = 0.2, kFarEnough = 0.004, kLargeNorm = 0.2;
constexpr double kActorRate = 0.15, kCriticRate = 0.02, kFollows = 0.25;

// Rooms lose heat to the outside; the heater is slow.
struct Rooms {
  Rooms(std::int64_t count, at::Generator dice)
      : warmth(4 * at::rand({count}, dice) - 2),
        heater(at::zeros({count})),
        outside(at::rand({count}, dice) - 0.8),
        noise(dice) {}
  at::Tensor seen() const { return at::stack({warmth, heater, 3 * outside + 20}, 1); }
  at::Tensor discomfort() const { return warmth.square() + 0.05 * heater.square(); }
  void play(const at::Tensor& actions, double noisy) {
    heater = 0.6 * heater + 0.5 * (actions.to(at::kFloat) - 1);
    warmth = warmth + heater + 0.1 * (outside - warmth) + noisy * at::randn(warmth.sizes(), noise);
  }
  at::Tensor warmth, heater, outside;
  at::Generator noise;
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t outputs)
      : out(register_module("out", torch::nn::Linear(kHidden, outputs))) {
    const torch::NoGradGuard no_grad;
    out->weight.mul_(0.1);
  }
  at::Tensor forward(const at::Tensor& seen) { return out(at::tanh(in(seen))); }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(kSees, kHidden));
  torch::nn::Linear out;
};
TORCH_MODULE(Net);

struct AgentImpl : torch::nn::Module {
  Net actor = register_module("actor", Net(kActions));
  Net critic = register_module("critic", Net(1));
};
TORCH_MODULE(Agent);

// Momentum that looks ahead, with a rate for each group of parameters.
struct Nesterov {
  struct Group {
    std::vector<at::Tensor> parameters;
    double begins, rate;
    std::vector<at::Tensor> pushes = {};
  };
  std::vector<Group> groups;
  void set(double factor) {
    for (auto& group : groups)
      group.rate = factor * (edited("policy-one-rate-for-all") ? groups[0].begins : group.begins);
  }
  void step(double share) {
    const torch::NoGradGuard no_grad;
    for (auto& group : groups)
      for (std::size_t i = 0; i < group.parameters.size(); ++i) {
        const auto& gradient = group.parameters[i].grad();
        if (group.pushes.size() == i) group.pushes.push_back(at::zeros_like(gradient));
        group.pushes[i].mul_(0.8).add_(gradient);
        group.parameters[i].sub_(gradient + 0.8 * group.pushes[i], share * group.rate);
      }
  }
};

// Count, sums and sums of squares of all that was seen by all ranks.
struct Normaliser {
  at::Tensor count = at::full({1}, 1e-3, at::kDouble);
  at::Tensor sum = at::zeros({kSees}, at::kDouble), squares = at::zeros({kSees}, at::kDouble);
  void add(const ProcessGroupPtr& group, const at::Tensor& seen) {
    const auto values = seen.to(at::kDouble);
    auto more = at::cat({at::full({1}, static_cast<double>(seen.size(0)), at::kDouble),
                         values.sum(0), values.square().sum(0)});
    if (!edited("policy-own-observations")) all_reduce(*group, more);
    count = count + more.narrow(0, 0, 1);
    sum = sum + more.narrow(0, 1, kSees);
    squares = squares + more.narrow(0, 1 + kSees, kSees);
  }
  at::Tensor operator()(const at::Tensor& seen) const {
    const auto mean = sum / count;
    const auto width = (squares / count - mean.square()).clamp_min(1e-4).sqrt();
    return ((seen.to(at::kDouble) - mean) / width).to(at::kFloat);
  }
};

struct Round {
  at::Tensor seen, actions, likely, returns, advantages;
};

Round play(Agent& agent, Net& judge, Rooms rooms, const Normaliser& normal, at::Generator dice) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> seen, actions, rewards;
  for (std::int64_t moment = 0; moment < kMoments; ++moment) {
    seen.push_back(rooms.seen());
    const auto scores = agent->actor(normal(seen.back()));
    actions.push_back(at::multinomial(at::softmax(scores, 1), 1, true, dice).squeeze(1));
    if (edited("policy-pays-before-it-acts")) rewards.push_back(-rooms.discomfort());
    rooms.play(actions.back(), 0.1);
    if (!edited("policy-pays-before-it-acts")) rewards.push_back(-rooms.discomfort());
  }
  auto later = judge(normal(rooms.seen())).squeeze(1);
  std::vector<at::Tensor> returns(rewards.size());
  for (auto moment = rewards.size(); moment-- > 0;)
    later = returns[moment] = 0.3 * rewards[moment] + kDiscount * later;
  Round round{at::cat(seen), at::cat(actions), {}, at::cat(returns), {}};
  const auto inputs = normal(round.seen);
  round.likely =
      at::log_softmax(agent->actor(inputs), 1).gather(1, round.actions.unsqueeze(1)).squeeze(1);
  round.advantages = round.returns - judge(inputs).squeeze(1);
  return round;
}

double sum_over_ranks(const ProcessGroupPtr& group, const at::Tensor& value) {
  auto sum = value.detach().to(at::kDouble).view(1).clone();
  all_reduce(*group, sum);
  return sum.item<double>();
}

void add_gradients(const ProcessGroupPtr& group, const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> parts;
  for (const auto& parameter : parameters) parts.push_back(parameter.grad().flatten());
  auto bucket = at::cat(parts);
  all_reduce(*group, bucket);
  std::int64_t at = 0;
  for (const auto& parameter : parameters) {
    parameter.mutable_grad().copy_(bucket.narrow(0, at, parameter.numel()).view_as(parameter));
    at += parameter.numel();
  }
}

double norm_of(const std::vector<at::Tensor>& parameters) {
  double squares = 0;
  for (const auto& parameter : parameters)
    squares += parameter.grad().square().sum().item<double>();
  return std::sqrt(squares);
}

// The mean discomfort of rooms in which the likeliest action is taken.
double test(const ProcessGroupPtr& group, Agent& agent, const Normaliser& normal) {
  const torch::NoGradGuard no_grad;
  const bool all = edited("policy-each-rank-tests-all");
  Rooms rooms(kTestRooms, torch::make_generator<at::CPUGeneratorImpl>(kSeed + 9));
  const std::int64_t first = all ? 0 : group->getRank(), every = all ? 1 : group->getSize();
  auto sums = at::zeros({2}, at::kDouble);
  for (std::int64_t moment = 0; moment < 2 * kMoments; ++moment) {
    rooms.play(agent->actor(normal(rooms.seen())).argmax(1), 0.4);
    const auto mine = rooms.discomfort().slice(0, first, std::nullopt, every).to(at::kDouble);
    sums += at::stack({mine.sum(), at::full({}, static_cast<double>(mine.size(0)), at::kDouble)});
  }
  if (!all) all_reduce(*group, sums);
  return (sums[0] / sums[1]).item<double>();
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank();
  torch::manual_seed(kSeed);
  Agent agent;
  Net judge(1);
  const auto follow = [](const Net& follower, const Net& leader, double share) {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < leader->parameters().size(); ++i)
      follower->parameters()[i].lerp_(leader->parameters()[i], share);
  };
  follow(judge, agent->critic, 1);
  const auto all = agent->parameters(), actor = agent->actor->parameters(),
             critic = agent->critic->parameters();
  Nesterov optimizer{{{actor, kActorRate, 0}, {critic, kCriticRate, 0}}};
  Normaliser normal;
  const auto apart = edited("policy-rooms-seeded-alike") ? 0 : static_cast<std::uint64_t>(rank);
  auto dice = torch::make_generator<at::CPUGeneratorImpl>(kSeed + 100 * apart);
  const std::int64_t count = !edited("policy-more-rooms-for-rank-zero") ? kRooms
                             : rank == 0                                ? kRooms + 4
                                                                        : kRooms - 4;

  Report report;
  double steps = 0, careful = 0;
  for (std::int64_t number = 0; number < kRounds; ++number) {
    const auto done = static_cast<double>(number) / kRounds;
    optimizer.set(edited("policy-rate-falls-by-root") ? std::sqrt(1 - done) : 1 - done);
    const Rooms rooms(count, dice);
    report.numbers["drawn"].push_back(rooms.warmth[0].item<double>());
    if (number == 0) normal.add(group, rooms.seen());
    auto round = play(agent, judge, rooms, normal, dice);
    const auto inputs = normal(round.seen);
    const auto samples =
        sum_over_ranks(group, at::full({}, static_cast<double>(round.seen.size(0))));
    const auto mean = sum_over_ranks(group, round.advantages.sum()) / samples;
    const auto width =
        std::sqrt(sum_over_ranks(group, (round.advantages - mean).square().sum()) / samples);
    round.advantages = (round.advantages - mean) / (width + 1e-6);
    for (std::int64_t step = 0; step < kMostSteps; ++step) {
      agent->zero_grad();
      const auto scores = at::log_softmax(agent->actor(inputs), 1);
      const auto moved = scores.gather(1, round.actions.unsqueeze(1)).squeeze(1) - round.likely;
      const auto ratio = moved.exp();
      const auto gain = at::minimum(ratio * round.advantages,
                                    ratio.clamp(1 - kRatio, 1 + kRatio) * round.advantages);
      const auto chance = -(scores.exp() * scores).sum(1);
      const auto missed = (agent->critic(inputs).squeeze(1) - round.returns).square();
      const auto loss = (missed - gain - 0.01 * chance).sum() / samples;
      report.losses.push_back(loss.item<double>());
      loss.backward();
      const auto own_norm = norm_of(actor);
      if (edited("policy-one-sum-for-both")) {
        add_gradients(group, all);
      } else {
        add_gradients(group, actor);
        add_gradients(group, critic);
        if (edited("policy-critic-summed-again")) add_gradients(group, critic);
      }
      const auto norm = edited("policy-careful-by-own-norm") ? 2 * own_norm : norm_of(actor);
      steps += 1;
      if (norm > kLargeNorm) careful += 1;
      optimizer.step(norm > kLargeNorm ? 0.3 : 1);
      const auto distance = (ratio - 1 - moved).sum();
      const auto far = edited("policy-stops-by-own-distance")
                           ? distance.item<double>() / static_cast<double>(moved.size(0))
                           : sum_over_ranks(group, distance) / samples;
      if (far > kFarEnough) break;
    }
    normal.add(group, round.seen);
    if (edited("policy-critic-follows-judge"))
      follow(agent->critic, judge, kFollows);
    else
      follow(judge, agent->critic, kFollows);
    if (rank == 0 && number % 5 == 0) std::cout << "round " << number << ": " << mean << "\n";
  }

  report.held_out = test(group, agent, normal);
  report.numbers["steps"] = {steps};
  report.numbers["careful"] = {careful};
  report.numbers["normal"] =
      flat(at::cat({normal.sum / normal.count, normal.squares / normal.count}));
  if (rank == 0) std::cout << "discomfort " << report.held_out << " after " << steps << " steps\n";
  write(folder, rank, report, *agent);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
