// Ranks that made different models: every rank learns which parameter, and none waits for long.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>

#include "../support/ddp_models.h"

namespace lockstep::test {
namespace {

using ::testing::HasSubstr;

// What each rank's construction said.
std::vector<std::string> messages(int world_size, const std::function<Mlp(int rank)>& make) {
  std::vector<std::string> texts(static_cast<std::size_t>(world_size));
  run_thread_ranks(world_size, [&](ProcessGroupPtr group) {
    auto& text = texts[static_cast<std::size_t>(group->getRank())];
    try {
      DistributedDataParallel(make(group->getRank()), group);
      text = "nothing was thrown";
    } catch (const Error& error) {
      text = error.what();
    }
  });
  return texts;
}

TEST(DdpMismatch, AShapeIsNamedOnEveryRank) {
  const auto texts =
      messages(3, [](int rank) { return seeded(1, [&] { return Mlp(4, 6, rank == 2 ? 5 : 3); }); });
  for (const auto& text : texts) {
    EXPECT_THAT(text, HasSubstr("rank 0 has fc2.weight [3, 6] Float"));
    EXPECT_THAT(text, HasSubstr("rank 2 has fc2.weight [5, 6] Float"));
  }
}

TEST(DdpMismatch, ANumberIsNamedWithTheFirstThatIsMissing) {
  const auto texts = messages(2, [](int rank) {
    auto net = seeded(1, [] { return Mlp(4, 6, 3); });
    if (rank == 1) net->fc2->bias.requires_grad_(false);
    return net;
  });
  for (const auto& text : texts) {
    EXPECT_THAT(text, HasSubstr("rank 0 has fc2.bias [3] Float, rank 1 has none"));
    EXPECT_THAT(text, HasSubstr("4 parameters that require a gradient on rank 0, 3 on rank 1"));
  }
}

TEST(DdpMismatch, ADtypeIsNamedToo) {
  const auto texts = messages(2, [](int rank) {
    auto net = seeded(1, [] { return Mlp(4, 6, 3); });
    if (rank == 1) net->to(torch::kFloat64);
    return net;
  });
  for (const auto& text : texts)
    EXPECT_THAT(text, HasSubstr("rank 1 has fc1.weight [6, 4] Double"));
}

TEST(DdpMismatch, EqualModelsPassTwiceOnOneGroup) {
  const auto make = [](int) { return seeded(1, [] { return Mlp(4, 6, 3); }); };
  run_thread_ranks(2, [&](ProcessGroupPtr group) {
    DistributedDataParallel(make(0), group);
    DistributedDataParallel(make(0), group);
  });
  for (const auto& text : messages(2, make)) EXPECT_EQ(text, "nothing was thrown");
}

}  // namespace
}  // namespace lockstep::test
