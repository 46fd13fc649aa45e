// Predicts a price from a table of offers, and averages gradients over the ranks by hand, as one long vector. A moving
// average of the weights is what is used in the end; the step size halves when an epoch brings little.
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/metrics.h>
#include <lockstep/train/seeding.h>
#include <lockstep/train/watched.h>

#include <iostream>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kOffers = 600, kTestOffers = 200, kColumns = 10;
constexpr std::int64_t kBatch = 25, kEpochs = 9;
constexpr std::uint64_t kSeed = 503;
constexpr double kKeep = 0.95, kLittle = 0.8;

struct Table {
  at::Tensor columns, is_shop, price;
};

// Columns of other sizes; what a shop costs follows another rule.
Table make_offers(std::int64_t count, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto rule = torch::make_generator<at::CPUGeneratorImpl>(kSeed);
  const auto inner = at::randn({kColumns, 6}, rule), outer = at::randn({6}, rule);
  const auto of_shop = at::randn({kColumns}, rule);
  const auto size = 1 + 4 * at::rand({kColumns}, rule), middle = 3 * at::randn({kColumns}, rule);
  const auto plain = at::randn({count, kColumns}, dice);
  const auto is_shop = at::rand({count}, dice).lt(0.08);
  const auto price = at::tanh(plain.mm(inner) / 2).mv(outer) + 0.5 * is_shop * plain.mv(of_shop) +
                     0.2 * at::randn({count}, dice);
  return {plain * size + middle, is_shop, price};
}

struct RegressorImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& columns, const at::Tensor& is_shop) {
    auto price = out(at::tanh(middle(at::tanh(in(columns))))).squeeze(1);
    const auto shops = is_shop.nonzero().squeeze(1);
    if (shops.size(0) > 0)
      price = price.index_add(0, shops, shop(columns.index_select(0, shops)).squeeze(1));
    return price;
  }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(kColumns, 48));
  torch::nn::Linear middle = register_module("middle", torch::nn::Linear(48, 24));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(24, 1));
  torch::nn::Linear shop = register_module("shop", torch::nn::Linear(kColumns, 1));
};
TORCH_MODULE(Regressor);

at::Tensor share_of(const ProcessGroupPtr& group, const at::Tensor& rows) {
  return rows.slice(0, group->getRank(), c10::nullopt, group->getSize());
}

double mean_loss(const ProcessGroupPtr& group, Regressor& net, const Table& table) {
  const torch::NoGradGuard no_grad;
  const auto said = net->forward(share_of(group, table.columns), share_of(group, table.is_shop));
  Mean loss;
  loss.add((said - share_of(group, table.price)).pow(2));
  return reduce_metric(*group, loss).value();
}

// The columns' means and deviations, from each rank's share of the rows.
std::pair<at::Tensor, at::Tensor> scale_of(const ProcessGroupPtr& group, const Table& table) {
  const auto own = share_of(group, table.columns).to(at::kDouble);
  auto sums = at::stack({at::ones_like(own), own, own.pow(2)}).sum(1);
  if (!edited("regress-scale-of-own-rows")) all_reduce(*group, sums);
  const auto mean = sums[1] / sums[0], deviation = (sums[2] / sums[0] - mean.pow(2)).sqrt();
  return {mean.to(at::kFloat), deviation.to(at::kFloat)};
}

// The mean of all ranks' gradients, to all of them. Batches without a shop have none for that layer.
void average_gradients(const ProcessGroupPtr& group, const std::vector<at::Tensor>& parameters) {
  const bool one_by_one = edited("regress-reduces-one-by-one");
  const bool divides_first = edited("regress-divides-first");
  std::vector<at::Tensor> parts;
  for (const auto& parameter : parameters) {
    if (!parameter.grad().defined()) {
      if (edited("regress-leaves-out-what-has-no-gradient")) continue;
      parameter.mutable_grad() = at::zeros_like(parameter);
    }
    if (one_by_one) {
      all_reduce(*group, parameter.mutable_grad());
      parameter.grad().div_(group->getSize());
    }
    parts.push_back(parameter.grad().flatten());
  }
  if (one_by_one) return;
  auto flat_gradients = at::cat(parts);
  if (divides_first) flat_gradients /= group->getSize();
  all_reduce(*group, flat_gradients);
  if (!divides_first && !edited("regress-sum-of-gradients")) flat_gradients /= group->getSize();
  std::int64_t from = 0;
  for (const auto& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    parameter.grad().copy_(
        flat_gradients.slice(0, from, from + parameter.numel()).view_as(parameter));
    from += parameter.numel();
  }
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank();
  auto offers = make_offers(kOffers, kSeed), test = make_offers(kTestOffers, kSeed + 1);
  const auto [mean, deviation] = scale_of(group, offers);
  offers.columns = (offers.columns - mean) / deviation;
  test.columns = (test.columns - mean) / deviation;

  manual_seed_per_rank(kSeed, rank);
  Regressor net, averaged;
  if (!edited("regress-broadcast-lost")) {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) broadcast(*group, parameter);
  }
  const auto parameters = net->parameters();
  auto reduced = parameters;
  if (edited("regress-list-without-the-new-layer")) reduced.resize(6);
  const auto averages = averaged->parameters();
  const auto average_weights = [&](double keep) {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (edited("regress-average-by-lerp"))
        averages[i].lerp_(parameters[i], 1 - keep);
      else
        averages[i].mul_(keep).add_(parameters[i], 1 - keep);
    }
  };
  average_weights(0);
  SGD optimizer(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));

  Report report;
  double least = 1e9;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto seed = kSeed + (edited("regress-another-order") ? 50 : 0);
    const auto dice = torch::make_generator<at::CPUGeneratorImpl>(sample_seed(seed, epoch, 0));
    const auto mine = share_of(group, at::randperm(kOffers, dice, at::kLong)).contiguous();
    std::vector<std::vector<std::int64_t>> batches;
    for (const auto& part : mine.split(kBatch))
      batches.emplace_back(part.data_ptr<std::int64_t>(),
                           part.data_ptr<std::int64_t>() + part.numel());
    tell_pass(epoch, kOffers, batches);
    report.seen.emplace_back();
    Mean loss_of_epoch;
    for (const auto& ids : batches) {
      report.seen.back().insert(report.seen.back().end(), ids.begin(), ids.end());
      const auto rows = at::tensor(ids);
      const auto said =
          net->forward(offers.columns.index_select(0, rows), offers.is_shop.index_select(0, rows));
      const auto loss = at::smooth_l1_loss(said, offers.price.index_select(0, rows));
      optimizer.zero_grad();
      loss.backward();
      if (edited("regress-clips-own-gradients")) {
        clip_grad_norm_(parameters, 0.5);
        average_gradients(group, reduced);
      } else {
        average_gradients(group, reduced);
        clip_grad_norm_(parameters, 0.5);
      }
      optimizer.step();
      if (!edited("regress-average-on-rank-zero") || rank == 0) average_weights(kKeep);
      report.losses.push_back(loss.item<double>());
      loss_of_epoch.add(loss.detach());
    }
    const auto now = edited("regress-halves-by-own-loss")
                         ? loss_of_epoch.value()
                         : reduce_metric(*group, loss_of_epoch).value();
    auto& options = optimizer.param_groups()[0].options();
    if (now > kLittle * least) options.set_lr(options.get_lr() / 2);
    least = std::min(least, now);
    report.held_out = mean_loss(group, averaged, test);
    report.numbers["averaged"].push_back(report.held_out);
    if (rank == 0) std::cout << "epoch " << epoch << ": " << now << ", " << report.held_out << "\n";
  }
  for (const auto& tensor : averages)
    for (const auto value : flat(tensor.flatten())) report.numbers["average"].push_back(value);
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
