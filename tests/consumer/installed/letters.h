// Somebody's own training: which letter comes next? A small convolution over the letters before it, on any text,
// with data parallelism written by hand. Nothing here knows of Lockstep.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace letters {

constexpr std::int64_t kContext = 24, kAlphabet = 128, kBatch = 32, kEpochs = 2;

// Every place in the text with enough letters before it: inputs [n, kContext], targets [n].
struct Places {
  torch::Tensor inputs, targets;
  std::int64_t size() const { return targets.size(0); }
};

inline Places read_places(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + file);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  std::vector<std::int64_t> codes;
  for (const unsigned char letter : text)
    if (letter < kAlphabet) codes.push_back(letter);
  if (static_cast<std::int64_t>(codes.size()) < 2 * kContext)
    throw std::runtime_error(file + " is too short");
  const auto windows = torch::tensor(codes).unfold(0, kContext + 1, 7);
  return {windows.narrow(1, 0, kContext).contiguous(), windows.select(1, kContext).contiguous()};
}

struct NextLetterImpl : torch::nn::Module {
  NextLetterImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(kAlphabet, 16))),
        first(register_module("first", torch::nn::Conv1d(16, 32, 5))),
        second(register_module("second", torch::nn::Conv1d(32, 32, 5))),
        out(register_module("out", torch::nn::Linear(32, kAlphabet))) {}
  torch::Tensor forward(const torch::Tensor& before) {
    const auto x = torch::relu(first(embedding(before).transpose(1, 2)));
    return out(torch::relu(second(x)).amax(2));
  }
  torch::nn::Embedding embedding;
  torch::nn::Conv1d first, second;
  torch::nn::Linear out;
};
TORCH_MODULE(NextLetter);

// The batches of one rank: an order shuffled from `seed`, cut into global batches, its part of each. The tail that
// makes no whole global batch is left out.
inline std::vector<std::vector<std::int64_t>> batches_of(std::int64_t places, std::uint64_t seed,
                                                         int rank, int world_size) {
  auto generator = torch::make_generator<torch::CPUGeneratorImpl>(seed);
  const auto order = torch::randperm(places, generator, torch::kInt64);
  const auto* ids = order.const_data_ptr<std::int64_t>();
  std::vector<std::vector<std::int64_t>> batches;
  for (std::int64_t at = rank * kBatch; at - rank * kBatch + world_size * kBatch <= places;
       at += world_size * kBatch)
    batches.emplace_back(ids + at, ids + at + kBatch);
  return batches;
}

// This rank's gradients in one tensor, and back.
inline torch::Tensor flat_gradients(const torch::nn::Module& module) {
  std::vector<torch::Tensor> all;
  for (const auto& parameter : module.parameters()) all.push_back(parameter.grad().flatten());
  return torch::cat(all);
}

inline void set_gradients(const torch::nn::Module& module, const torch::Tensor& flat) {
  std::int64_t at = 0;
  for (const auto& parameter : module.parameters()) {
    parameter.mutable_grad().copy_(flat.narrow(0, at, parameter.numel()).view_as(parameter));
    at += parameter.numel();
  }
}

}  // namespace letters
