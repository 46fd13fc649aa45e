// Data in memory: real (Fashion-MNIST) and made up (seeded).
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

// N samples. inputs: [N, ...] float32; targets: [N] int64 class ids, or [N, ...] float32.
struct TensorData {
  at::Tensor inputs;
  at::Tensor targets;
  std::string phase = {};  // that it is for: "train", "evaluation"; empty: not known
  // Where they are a part of a larger data set: the samples' numbers in it, and how many it has.
  std::vector<std::int64_t> ids = {};
  std::int64_t global_size = 0;
  std::int64_t size() const { return inputs.size(0); }
};

enum class Split { train, test };

// The folder of Fashion-MNIST's four gzipped IDX files: LOCKSTEP_DATA where it is set, else where
// Debian's dataset-fashion-mnist puts it. Throws Error naming both where there is none.
std::filesystem::path fashion_mnist_folder();

// The first `limit` samples (all of them: limit <= 0). inputs [N, 784] float32 in [0, 1], targets
// [N] int64. Values are byte / 255, as torchvision's ToTensor gives them. Throws Error for a
// damaged file: its name, the offset in the unpacked data and what was expected. With a limit, what
// lies behind it is not read, so damage there (and gzip's checksum, which is of the whole) goes
// unnoticed.
TensorData fashion_mnist(Split split, std::int64_t limit = 0);
TensorData fashion_mnist(const std::filesystem::path& folder, Split split, std::int64_t limit);

// Made-up data that can be learned: inputs [n, features] normal; targets the class of a random
// linear map drawn from the same seed. Equal on every machine with the same torch. Does not touch
// the global generator.
TensorData synthetic(std::int64_t n, std::int64_t features, std::int64_t classes,
                     std::uint64_t seed);

// Fashion-MNIST where it is installed, else as many made-up samples of its shape (one map for both
// splits, no sample in both); says which on request: "Fashion-MNIST" or "synthetic".
TensorData fashion_mnist_or_synthetic(Split split, std::int64_t limit,
                                      std::string* which = nullptr);

// The rows of `data` at `indices`, in that order. Throws Error naming the index that is out of
// range.
TensorData take(const TensorData& data, const std::vector<std::int64_t>& indices);

// The two halves of take(). rows_of tells no observer: use it for a look at samples that is no part of the training.
// tell_taken only tells: use it where the rows come another way, such as from a loader's process.
TensorData rows_of(const TensorData& data, const std::vector<std::int64_t>& indices);
void tell_taken(const TensorData& data, const std::vector<std::int64_t>& indices);

}  // namespace lockstep
