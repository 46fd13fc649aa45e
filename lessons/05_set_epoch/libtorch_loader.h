// A data set of nothing but ids, so that LibTorch's own loader can be asked which samples it would
// load.
#pragma once

#include <torch/data.h>

#include <cstdint>
#include <optional>
#include <vector>

class Ids : public torch::data::datasets::BatchDataset<Ids, std::vector<std::int64_t>> {
 public:
  explicit Ids(std::size_t size) : size_(size) {}
  std::vector<std::int64_t> get_batch(torch::ArrayRef<std::size_t> indices) override {
    return {indices.begin(), indices.end()};
  }
  std::optional<std::size_t> size() const override { return size_; }

 private:
  std::size_t size_;
};
