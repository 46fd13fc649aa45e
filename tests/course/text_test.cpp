// What `explain` prints with: differences, narrow lines, names that were meant.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/course/diff.h>
#include <lockstep/course/narrow.h>
#include <lockstep/course/nearest.h>

namespace lockstep::course {
namespace {

std::string shown(const std::vector<Hunk>& hunks) {
  std::string text;
  for (const auto& hunk : hunks) {
    text += head_of(hunk) + "\n";
    for (const auto& line : hunk.lines) text += line.sign + line.text + "\n";
  }
  return text;
}

TEST(Diff, IsUnified) {
  const std::string before = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
  EXPECT_EQ(shown(hunks_between(before, before, 3)), "");
  // As `diff -U1` says.
  EXPECT_EQ(shown(hunks_between(before, "0\n1\n2\n3\nfour\n5\n7\n8\n9\n", 1)),
            "@@ -1,1 +1,2 @@\n+0\n 1\n@@ -3,5 +4,4 @@\n 3\n-4\n+four\n 5\n-6\n 7\n");
  EXPECT_EQ(shown(hunks_between("a\n", "b\n", 3)), "@@ -1,1 +1,1 @@\n-a\n+b\n");
}

TEST(Narrow, LinesAreBrokenWhereCodeAllowsIt) {
  EXPECT_EQ(narrowed("  int short_one = 1;  // of it\n\n", 40),
            "  int short_one = 1;  // of it\n\n");
  EXPECT_EQ(narrowed("  int short_one = 1;  // of it\n", 24), "  // of it\n  int short_one = 1;\n");
  EXPECT_EQ(narrowed("  // one two three four five\n", 16),
            "  // one two\n  // three four\n  // five\n");
  EXPECT_EQ(narrowed("  const auto sum = add(first, second(a, b));\n", 36),
            "  const auto sum =\n      add(first, second(a, b));\n");
  EXPECT_EQ(narrowed("say(\"a text, not to be broken\", other);\n", 34),
            "say(\"a text, not to be broken\",\n    other);\n");
  EXPECT_EQ(narrowed("        \"not to be broken\";\n", 22), "   \"not to be broken\";\n");
  EXPECT_EQ(narrowed("say(\"a_text,_not_to_be_broken\");\n", 10),
            "say(\"a_text,_not_to_be_broken\");\n");
}

TEST(Nearest, HoldsItThenWordsThenLetters) {
  using testing::ElementsAre;
  const std::vector<std::string> names = {"peer-dies", "missing-set-epoch", "set-epoch-on-copy",
                                          "no-warmup"};
  EXPECT_EQ(nearest("mising-set-epoch", names)[0], "missing-set-epoch");
  EXPECT_EQ(nearest("warm", names)[0], "no-warmup");
  EXPECT_EQ(nearest("epoch-set", names)[0], "set-epoch-on-copy");
  EXPECT_EQ(nearest("epoch-set", names)[1], "missing-set-epoch");
  EXPECT_EQ(nearest("setepoch", names)[0], "missing-set-epoch");
  EXPECT_EQ(nearest("pear-dies", names)[0], "peer-dies");
  EXPECT_EQ(nearest("missing_set_epoch", names)[0], "missing-set-epoch");
  EXPECT_EQ(nearest("sync-batch", {"a", "06_sync_batch_norm"})[0], "06_sync_batch_norm");
  EXPECT_THAT(nearest("x", {"y"}), ElementsAre("y"));
}

}  // namespace
}  // namespace lockstep::course
