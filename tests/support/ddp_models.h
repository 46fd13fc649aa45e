// Small models with what trips a DDP up, and the gradients it should give.
#pragma once

#include <gtest/gtest.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/models.h>
#include <torch/torch.h>

#include <tuple>
#include <vector>

#include "thread_ranks.h"

namespace lockstep::test {

// Which of the two branches a forward uses is an input: the other's parameters stay unused.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    trunk = register_module("trunk", torch::nn::Linear(4, 4));
    left = register_module("left", torch::nn::Linear(4, 3));
    right = register_module("right", torch::nn::Linear(4, 3));
  }
  torch::Tensor forward(const torch::Tensor& inputs, bool use_left) {
    const auto hidden = torch::tanh(trunk->forward(inputs));
    return use_left ? left->forward(hidden) : right->forward(hidden);
  }
  torch::nn::Linear trunk{nullptr}, left{nullptr}, right{nullptr};
};
TORCH_MODULE(Branches);

// One Linear registered under two names and used twice.
struct SharedImpl : torch::nn::Module {
  SharedImpl() {
    first = register_module("first", torch::nn::Linear(4, 4));
    again = register_module("again", first);
    last = register_module("last", torch::nn::Linear(4, 3));
  }
  torch::Tensor forward(const torch::Tensor& inputs) {
    return last->forward(torch::tanh(again->forward(torch::tanh(first->forward(inputs)))));
  }
  torch::nn::Linear first{nullptr}, again{nullptr}, last{nullptr};
};
TORCH_MODULE(Shared);

// Two inputs, two outputs.
struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl() {
    trunk = register_module("trunk", torch::nn::Linear(4, 4));
    a = register_module("a", torch::nn::Linear(4, 3));
    b = register_module("b", torch::nn::Linear(4, 2));
  }
  std::tuple<torch::Tensor, torch::Tensor> forward(const torch::Tensor& x, const torch::Tensor& y) {
    const auto hidden = torch::tanh(trunk->forward(x + y));
    return {a->forward(hidden), b->forward(hidden)};
  }
  torch::nn::Linear trunk{nullptr}, a{nullptr}, b{nullptr};
};
TORCH_MODULE(TwoHeads);

inline Mlp make_mlp() {
  return seeded(7, [] { return Mlp(4, 6, 3); });
}

// A rank's inputs for a step: [8, features], of its own.
inline torch::Tensor inputs_of(int rank, int step = 0, std::int64_t features = 4) {
  return seeded(static_cast<std::uint64_t>(1000 + 100 * step + rank), [&] {
    return torch::randn({8, features});
  });
}

using Gradients = std::vector<at::Tensor>;  // by parameter; undefined where there is none

inline Gradients gradients_of(const torch::nn::Module& module) {
  Gradients gradients;
  for (const auto& parameter : module.parameters())
    gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  return gradients;
}

// The mean over ranks of what backward(rank), on a module of its own, leaves: no DDP, no
// communication.
inline Gradients mean_gradients(int world_size,
                                const std::function<Gradients(int rank)>& backward) {
  Gradients mean;
  for (int rank = 0; rank < world_size; ++rank) {
    const auto local = backward(rank);
    mean.resize(local.size());
    for (std::size_t i = 0; i < local.size(); ++i) {
      if (!local[i].defined()) continue;
      const auto part = local[i].to(torch::kFloat64) / world_size;
      mean[i] = mean[i].defined() ? mean[i] + part : part;
    }
  }
  return mean;
}

// Equal to float32 rounding: W terms of size about 1, each rounded to 6e-8.
inline ::testing::AssertionResult close(const Gradients& got, const Gradients& expected) {
  if (got.size() != expected.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i].defined() != expected[i].defined())
      return ::testing::AssertionFailure() << "gradient " << i << " is defined on one side only";
    if (!got[i].defined()) continue;
    const double difference =
        (got[i].to(torch::kFloat64) - expected[i].to(torch::kFloat64)).abs().max().item<double>();
    if (!(difference < 1e-6))
      return ::testing::AssertionFailure() << "gradient " << i << " is off by " << difference;
  }
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult identical(const Gradients& a, const Gradients& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined())
      return ::testing::AssertionFailure() << i << ": defined on one side";
    if (a[i].defined() && !a[i].equal(b[i]))
      return ::testing::AssertionFailure() << i << " differs";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace lockstep::test
