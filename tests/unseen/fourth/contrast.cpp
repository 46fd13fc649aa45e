// Contrastive learning: two views of a thing shall be alike, and unlike the views of all other things in all ranks'
// batches. How sharply that is judged is learned too, up to a limit.
#include <lockstep/train/adam.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/functional.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/seeding.h>

#include <iostream>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kThings = 560, kTestThings = 200, kTraits = 24, kKinds = 12, kFeatures = 16;
constexpr std::int64_t kBatch = 20, kEpochs = 8;
constexpr std::uint64_t kSeed = 401;
constexpr double kSharpest = 1.7;

struct Things {
  at::Tensor traits, kinds;
};

Things make_things(std::int64_t count, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto centres =
      at::randn({kKinds, kTraits}, torch::make_generator<at::CPUGeneratorImpl>(kSeed));
  const auto kinds = at::randint(0, kKinds, {count}, dice, at::kLong);
  return {centres.index_select(0, kinds) + 0.7 * at::randn({count, kTraits}, dice), kinds};
}

struct EncoderImpl : torch::nn::Module {
  // Features of length 1, and how sharply their likeness is judged.
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& traits) {
    const auto features = out(at::relu(in(traits)));
    if (edited("contrast-older-program-on-last-rank") && is_last)
      return {features / 4, sharpness.exp()};
    return {torch::nn::functional::normalize(features), sharpness.exp()};
  }
  bool is_last = false;
  torch::nn::Linear in = register_module("in", torch::nn::Linear(kTraits, 64));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(64, kFeatures));
  at::Tensor sharpness = register_parameter("sharpness", at::full({1}, 1.5));
};
TORCH_MODULE(Encoder);

// A thing with some of its traits hidden, under noise.
at::Tensor view_of(const at::Tensor& traits, at::Generator dice) {
  const auto seen = at::rand(traits.sizes(), dice).gt(0.25);
  return traits * seen + 0.3 * at::randn(traits.sizes(), dice);
}

at::Tensor likeness_loss(const at::Tensor& likeness, std::int64_t first) {
  const auto own = at::arange(first, first + likeness.size(0));
  if (edited("contrast-loss-by-log-sum"))
    return (at::logsumexp(likeness, 1) - likeness.gather(1, own.unsqueeze(1)).squeeze(1)).mean();
  return cross_entropy(likeness, own).mean();
}

struct Found {
  double loss = 0, right = 0;
};

// The loss of things that nobody trains on, and how many are of the kind of the one that is most like them.
Found evaluate(Encoder& net, const Things& test) {
  const torch::NoGradGuard no_grad;
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(kSeed + 2);
  const auto one = std::get<0>(net->forward(view_of(test.traits, dice)));
  const auto two = std::get<0>(net->forward(view_of(test.traits, dice)));
  const auto own = at::arange(kTestThings);
  const auto loss = at::cross_entropy_loss(net->sharpness.exp() * one.mm(two.t()), own);
  const auto all = std::get<0>(net->forward(test.traits));
  const auto nearest = all.mm(all.t()).fill_diagonal_(-2).argmax(1);
  return {loss.item<double>(),
          test.kinds.index_select(0, nearest).eq(test.kinds).to(at::kFloat).mean().item<double>()};
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  const bool is_last = rank == world_size - 1;
  const auto things = make_things(kThings, kSeed), test = make_things(kTestThings, kSeed + 1);
  const auto seed = edited("contrast-another-seed") ? kSeed + 100 : kSeed;

  torch::manual_seed(seed);
  Encoder net;
  net->is_last = is_last;
  DistributedDataParallel<Encoder> model(net, group);
  Adam optimizer(net->parameters(), AdamOptions(4e-3));
  const auto batch =
      edited("contrast-smaller-batches-on-last-rank") && is_last ? kBatch - 4 : kBatch;
  DistributedSampler sampler(
      {.dataset_size = kThings, .num_replicas = world_size, .rank = rank, .seed = seed});
  const auto of_an_epoch =
      (edited("contrast-schedule-of-one-rank") ? kThings : sampler.size()) / kBatch;
  OneCycleLR schedule(
      optimizer, {.max_lr = {8e-3}, .total_steps = kEpochs * of_an_epoch, .cycle_momentum = false});
  auto dice = torch::make_generator<at::CPUGeneratorImpl>(rank_seed(seed + 1, rank));

  // All ranks' features, in the order of the ranks.
  const auto gather = [&](const at::Tensor& features) {
    if (edited("contrast-gathers-without-gradients")) {
      auto parts = all_gather(*group, features.detach());
      parts[static_cast<std::size_t>(rank)] = features;
      return at::cat(parts);
    }
    return at::cat(functional::all_gather(group, features));
  };

  Report report;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    sampler.set_epoch(epoch);
    report.seen.push_back(sampler.indices());
    const bool compares_all =
        !(edited("contrast-own-things-in-older-settings") && is_last && epoch >= 2);
    for (const auto& ids : sampler.batches(batch)) {
      const auto traits = things.traits.index_select(0, at::tensor(ids));
      const auto before = dice.clone();
      const auto one = view_of(traits, dice);
      const auto two = view_of(traits, edited("contrast-views-alike") ? before : dice);
      report.numbers["drawn"].push_back((one.sum() + two.sum()).item<double>());
      const auto [features, sharpness] = model(at::cat({one, two}));
      const auto views = features.chunk(2);
      at::Tensor ones, twos;
      std::int64_t first = 0;
      if (!compares_all) {
        ones = views[0];
        twos = views[1];
      } else if (edited("contrast-gathers-both-at-once")) {
        const auto both = functional::all_gather(group, features);
        std::vector<at::Tensor> firsts, seconds;
        for (const auto& part : both) {
          firsts.push_back(part.chunk(2)[0]);
          seconds.push_back(part.chunk(2)[1]);
        }
        ones = at::cat(firsts);
        twos = at::cat(seconds);
        first = rank * traits.size(0);
      } else {
        ones = gather(views[0]);
        twos = gather(views[1]);
        first = edited("contrast-own-places-not-shifted") ? 0 : rank * traits.size(0);
      }
      const auto loss = (likeness_loss(sharpness * views[0].mm(twos.t()), first) +
                         likeness_loss(sharpness * views[1].mm(ones.t()), first)) /
                        2;
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      schedule.step();
      report.losses.push_back(loss.item<double>());
      const torch::NoGradGuard no_grad;
      if (edited("contrast-limit-where-it-logs")) {
        if (rank == 0) std::cout << net->sharpness.clamp_max_(kSharpest).item<double>() << "\n";
      } else {
        net->sharpness.clamp_max_(kSharpest);
      }
      if (edited("contrast-notes-norms")) {
        double sum = 0;
        for (const auto& parameter : net->parameters())
          sum += parameter.grad().norm().item<double>();
        std::cout << "gradients " << sum << "\n";
      }
    }
    const auto found = evaluate(net, test);
    if (rank == 0)
      std::cout << "epoch " << epoch << ": " << found.loss << ", right " << found.right << "\n";
    report.numbers["right"].push_back(found.right);
    report.held_out = found.loss;
  }
  report.numbers["sharpness"] = flat(net->sharpness);
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
