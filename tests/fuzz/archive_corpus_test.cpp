// Every input that the fuzzer starts from, and every one that once found a fault, in an ordinary build.
#include <gtest/gtest.h>
#include <lockstep/base/file.h>

#include <filesystem>

#include "../support/checkout.h"
#include "archive_input.h"

namespace lockstep::archive {
namespace {

// A file's name says what must become of it: good_... is accepted, bad_... refused.
TEST(ArchiveCorpus, EveryInputMeetsItsFate) {
  std::size_t good = 0, bad = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(testing::in_checkout("tests/fuzz/corpus"))) {
    const auto name = entry.path().filename().string();
    const auto input = read_file(entry.path());
    const bool accepted = try_input(input);
    ASSERT_TRUE(name.starts_with("good_") || name.starts_with("bad_")) << name;
    EXPECT_EQ(accepted, name.starts_with("good_")) << name;
    accepted ? ++good : ++bad;
    // Inputs are where faults lie near: each with one byte changed, and cut.
    auto near = input;
    for (std::size_t i = 0; i < input.size(); i += 7) {
      near[i] = static_cast<char>(input[i] + 1);
      try_input(near);
      near[i] = input[i];
      try_input(std::string_view(input).substr(0, i));
    }
  }
  EXPECT_GE(good, 5u);
  EXPECT_GE(bad, 10u);
}

}  // namespace
}  // namespace lockstep::archive
