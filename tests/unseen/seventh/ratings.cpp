// How does a reader like a book? Factors and biases of readers and books, by Adagrad. A batch is
// some readers with all that they rated, so ranks have other counts of ratings; the gradient is the
// mean over the ratings of all ranks, which the program sums itself. Books are frozen at first.
// Books are known by their shop's number.
#include <lockstep/dist/process_group.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/seeding.h>
#include <lockstep/train/watched.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <numeric>
#include <random>

#include "edited.h"

namespace {

using namespace lockstep;
using namespace unseen;

constexpr std::int64_t kReaders = 96, kBooks = 50, kFactors = 6, kTests = 300;
constexpr std::int64_t kReadersInBatch = 6, kEpochs = 9;
constexpr std::uint64_t kSeed = 1812;
constexpr double kRate = 0.15, kDecay = 0.08;

struct Rating {
  std::int64_t reader, shop_number;
  float stars;
};

// Some read much, most read little.
std::pair<std::vector<Rating>, std::vector<Rating>> read_ratings() {
  std::mt19937_64 dice(kSeed);
  const auto unit = [&] { return static_cast<double>(dice() % 2001) / 1000 - 1; };
  std::vector<double> readers, books;
  for (std::int64_t i = 0; i < 3 * kReaders; ++i) readers.push_back(unit());
  for (std::int64_t i = 0; i < 3 * kBooks; ++i) books.push_back(unit());
  std::vector<Rating> ratings, tests;
  for (std::int64_t reader = 0; reader < kReaders; ++reader) {
    const auto count = 4 + static_cast<std::int64_t>(dice() % 5 == 0 ? dice() % 60 : dice() % 12);
    for (std::int64_t i = 0; i < count + 3; ++i) {
      const auto book = static_cast<std::int64_t>(dice() % kBooks);
      const auto* mine = &readers[static_cast<std::size_t>(3 * reader)];
      const auto* its = &books[static_cast<std::size_t>(3 * book)];
      const auto stars = 3 + mine[0] + its[0] + 1.5 * (mine[1] * its[1] + mine[2] * its[2]);
      (i < count ? ratings : tests)
          .push_back(
              {reader, 7001 + 13 * (book * 17 % kBooks), static_cast<float>(stars + 0.2 * unit())});
    }
  }
  tests.resize(std::min<std::size_t>(tests.size(), kTests));
  return {ratings, tests};
}

// Books are numbered as they first come.
std::map<std::int64_t, std::int64_t> number_books(const std::vector<Rating>& ratings, int rank) {
  std::map<std::int64_t, std::int64_t> numbers;
  for (const auto& rating : ratings) {
    if (edited("ratings-books-numbered-by-own-part") && rating.reader % 2 != rank) continue;
    numbers.try_emplace(rating.shop_number, std::ssize(numbers));
  }
  for (const auto& rating : ratings) numbers.try_emplace(rating.shop_number, std::ssize(numbers));
  return numbers;
}

struct FactorsImpl : torch::nn::Module {
  explicit FactorsImpl(double mean_stars) : mean(mean_stars) {}
  at::Tensor forward(const at::Tensor& readers, const at::Tensor& books) {
    const auto likes =
        (reader_factors.index_select(0, readers) * book_factors.index_select(0, books)).sum(1);
    return mean + likes + reader_biases.index_select(0, readers) +
           book_biases.index_select(0, books);
  }
  double mean;
  at::Tensor reader_factors =
      register_parameter("reader_factors", 0.3 * at::randn({kReaders, kFactors}));
  at::Tensor book_factors = register_parameter("book_factors", 0.3 * at::randn({kBooks, kFactors}));
  at::Tensor reader_biases = register_parameter("reader_biases", at::zeros(kReaders));
  at::Tensor book_biases = register_parameter("book_biases", at::zeros(kBooks));
};
TORCH_MODULE(Factors);

struct Rows {
  at::Tensor readers, books, stars;
};

Rows rows_of(const std::vector<Rating>& ratings, std::map<std::int64_t, std::int64_t>& numbers) {
  std::vector<std::int64_t> readers, books;
  std::vector<float> stars;
  for (const auto& rating : ratings) {
    readers.push_back(rating.reader);
    books.push_back(numbers.try_emplace(rating.shop_number, 0).first->second);
    stars.push_back(rating.stars);
  }
  return {at::tensor(readers), at::tensor(books), at::tensor(stars)};
}

// The gradients become the mean over `count` ratings of each rank.
void reduce(const ProcessGroupPtr& group, const std::vector<at::Tensor>& parameters, double count) {
  auto total = at::tensor(count, at::kDouble);
  if (edited("ratings-mean-of-the-ranks-means")) total.fill_(1);
  all_reduce(*group, total);
  const auto scale = edited("ratings-mean-of-the-ranks-means") ? 1 / count : 1.0;
  std::vector<at::Tensor> parts;
  for (const auto& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    parameter.mutable_grad().mul_(scale);
    if (edited("ratings-reduces-tensor-by-tensor")) {
      all_reduce(*group, parameter.mutable_grad());
      parameter.mutable_grad().div_(total.item<double>());
    } else {
      parts.push_back(parameter.grad().flatten());
    }
  }
  if (parts.empty()) return;
  auto bucket = at::cat(parts);
  if (edited("ratings-sums-in-double")) bucket = bucket.to(at::kDouble);
  all_reduce(*group, bucket);
  bucket.div_(total.item<double>());
  std::int64_t at = 0;
  for (const auto& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    parameter.mutable_grad().copy_(bucket.narrow(0, at, parameter.numel()).view(parameter.sizes()));
    at += parameter.numel();
  }
}

void train(const std::filesystem::path& folder) {
  auto group = init_process_group({.timeout = std::chrono::seconds(10)});
  const int rank = group->getRank(), world_size = group->getSize();
  auto [ratings, tests] = read_ratings();
  auto numbers = number_books(ratings, rank);
  if (edited("ratings-tests-are-trained-on"))
    tests.assign(ratings.begin(), ratings.begin() + kTests);
  double mean = 0;
  for (const auto& rating : ratings) mean += rating.stars / static_cast<double>(ratings.size());

  manual_seed_per_rank(kSeed, rank);
  Factors net(mean);
  {
    const torch::NoGradGuard no_grad;
    const int from = edited("ratings-starts-as-last-rank") ? world_size - 1 : 0;
    for (auto& parameter : net->parameters())
      if (!edited("ratings-start-not-broadcast")) broadcast(*group, parameter, from);
  }
  Watched<torch::optim::Adagrad> optimizer(net->parameters(), torch::optim::AdagradOptions(kRate));
  MultiStepLR schedule(optimizer, {.milestones = {5, 7}, .gamma = 0.4});  // in epochs
  auto reduced = net->parameters();
  if (edited("ratings-list-without-biases")) reduced = {net->reader_factors, net->book_factors};

  Report report;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const bool thawed = edited("ratings-books-stay-frozen") ? epoch > kEpochs : epoch > 0;
    net->book_factors.set_requires_grad(thawed);
    net->book_biases.set_requires_grad(thawed);
    std::vector<std::int64_t> order(kReaders);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(),
                 std::mt19937_64(kSeed + static_cast<std::uint64_t>(epoch)));
    const auto steps = kReaders / (kReadersInBatch * world_size);
    std::int64_t in_batch = kReadersInBatch, begin = rank * steps * kReadersInBatch;
    if (edited("ratings-share-begins-a-reader-early")) begin -= rank;
    if (edited("ratings-larger-share-for-rank-zero")) {
      in_batch = rank == 0 ? 8 : 4;
      begin = rank == 0 ? 0 : 8 * steps;
    }
    report.seen.emplace_back();
    for (std::int64_t step = 0; step < steps; ++step) {
      const auto first = order.begin() + begin + step * in_batch;
      const std::vector<std::int64_t> readers(first, first + in_batch);
      report.seen.back().insert(report.seen.back().end(), readers.begin(), readers.end());
      std::vector<Rating> batch;
      for (const auto& rating : ratings)
        if (std::find(readers.begin(), readers.end(), rating.reader) != readers.end())
          batch.push_back(rating);
      const auto rows = rows_of(batch, numbers);
      optimizer.zero_grad();
      const auto errors = (net->forward(rows.readers, rows.books) - rows.stars).square();
      const auto shrinks = net->reader_factors.index_select(0, rows.readers).square().sum(1) +
                           net->book_factors.index_select(0, rows.books).square().sum(1);
      (errors + kDecay * shrinks).sum().backward();
      report.losses.push_back(errors.mean().item<double>());
      report.tokens.push_back(std::ssize(batch));
      reduce(group, reduced, static_cast<double>(batch.size()));
      optimizer.step();
      if (edited("ratings-milestones-come-by-batch")) schedule.step();
    }
    if (!edited("ratings-milestones-come-by-batch")) schedule.step();
    if (rank == 0 && epoch % 3 == 0)
      std::cout << "epoch " << epoch << ": " << report.losses.back() << "\n";
  }

  const torch::NoGradGuard no_grad;
  std::vector<Rating> mine;
  for (auto i = static_cast<std::size_t>(rank); i < tests.size();
       i += static_cast<std::size_t>(world_size))
    mine.push_back(tests[i]);
  const auto rows = rows_of(mine, numbers);
  auto sums = at::stack({(net->forward(rows.readers, rows.books) - rows.stars).square().sum(),
                         at::full({}, static_cast<double>(mine.size()))})
                  .to(at::kDouble);
  all_reduce(*group, sums);
  report.held_out = (sums[0] / sums[1]).sqrt().item<double>();
  write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, train);
}
