// Training on a GPU against training on the CPU: two ranks, the same weights and samples, how far each tensor has moved
// after four steps. On GPUs (label gpu) they are skipped where there is none; the lossy ones are tried on the CPU, too.
#include <gtest/gtest.h>
#include <lockstep/base/file.h>
#include <lockstep/launch/launch.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include "../support/gpus.h"

namespace lockstep {
namespace {

using Moved = std::map<std::string, std::vector<double>>;

Moved read(const std::filesystem::path& file) {
  Moved moved;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    std::size_t count = 0;
    words >> name >> count;
    auto& values = moved[name];
    for (double value = 0; words >> value;) values.push_back(value);
    EXPECT_EQ(values.size(), count) << name;
  }
  return moved;
}

Moved trained(const std::string& name, const std::string& device) {
  const TemporaryFolder folder("lockstep-device-test");
  const auto out = folder.path() / "moved";
  const auto result = launch::launch({.command = {DEVICE_RANK, name, device, out.string()},
                                      .world_size = 2,
                                      .folder = folder.path(),
                                      .deadline = std::chrono::seconds(50)});
  EXPECT_TRUE(result.completed()) << result.summary();
  return read(out);
}

// Over the reference's length; of a tensor that did not move, the distance itself.
double distance(const std::vector<double>& moved, const std::vector<double>& reference) {
  double apart = 0, length = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    apart += std::pow(moved.at(i) - reference[i], 2);
    length += std::pow(reference[i], 2);
  }
  return std::sqrt(apart) / (length > 0 ? std::sqrt(length) : 1);
}

// `bound`: of float32 on another device, whose sums are in another order; of 8 or 11 significant bits in places.
struct Against {
  std::string name, reference;
  double bound;
};
std::ostream& operator<<(std::ostream& out, const Against& against) {
  return out << against.name;
}

void compare(const Against& against, const std::string& device) {
  const auto reference = trained(against.reference, "cpu"), moved = trained(against.name, device);
  ASSERT_FALSE(reference.empty());
  ASSERT_EQ(moved.size(), reference.size());
  for (const auto& [name, values] : reference) {
    ASSERT_EQ(moved.at(name).size(), values.size()) << name;
    EXPECT_LT(distance(moved.at(name), values), against.bound) << name;
  }
}

std::string name_of(const ::testing::TestParamInfo<Against>& info) {
  return info.param.name;
}

class OnTheGpu : public ::testing::TestWithParam<Against> {};

TEST_P(OnTheGpu, MovesAsOnTheCpu) {
  if (const auto why = testing::why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  compare(GetParam(), gpu::gpus_here() < 2 ? "cuda-shared" : "cuda");
}

INSTANTIATE_TEST_SUITE_P(Training, OnTheGpu,
                         ::testing::Values(Against{"plain", "plain", 1e-4},
                                           Against{"no_sync", "no_sync", 1e-4},
                                           Against{"clipped", "clipped", 1e-4},
                                           Against{"sync_batch_norm", "sync_batch_norm", 1e-3},
                                           Against{"bf16_hook", "plain", 0.01},
                                           Against{"autocast_bf16", "plain", 0.04},
                                           Against{"autocast_fp16_scaled", "clipped", 0.005}),
                         name_of);

class OnTheCpu : public ::testing::TestWithParam<Against> {};

TEST_P(OnTheCpu, LosesNoMoreThanItsBits) {
  compare(GetParam(), "cpu");
}

INSTANTIATE_TEST_SUITE_P(Training, OnTheCpu,
                         ::testing::Values(Against{"bf16_hook", "plain", 0.01},
                                           Against{"autocast_bf16", "plain", 0.04},
                                           Against{"autocast_fp16_scaled", "clipped", 0.005}),
                         name_of);

}  // namespace
}  // namespace lockstep
