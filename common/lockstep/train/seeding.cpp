#include <lockstep/train/seeding.h>
#include <torch/torch.h>

namespace lockstep {
namespace {

std::uint64_t fold(std::uint64_t h, std::uint64_t v) {
  std::uint64_t z = h + v + 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

std::uint64_t rank_seed(std::uint64_t seed, int rank) {
  return fold(fold(0, seed), static_cast<std::uint64_t>(rank));
}

std::uint64_t sample_seed(std::uint64_t seed, std::int64_t epoch, std::int64_t index) {
  return fold(fold(fold(0, seed), static_cast<std::uint64_t>(epoch)),
              static_cast<std::uint64_t>(index));
}

void manual_seed_per_rank(std::uint64_t seed, int rank) {
  torch::manual_seed(rank_seed(seed, rank));
}

}  // namespace lockstep
