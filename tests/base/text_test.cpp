// Lines for people: filled to 80 columns, and what long work is at.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/countdown.h>
#include <lockstep/base/text.h>

#include <numeric>
#include <sstream>
#include <vector>

namespace lockstep {
namespace {

std::string words(std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += (i == 0 ? "" : " ") + std::string("four");
  return text;
}

TEST(RanksText, TellsManyInRanges) {
  EXPECT_EQ(ranks_text({3}), "rank 3");
  EXPECT_EQ(ranks_text({0, 1, 2, 9}), "ranks 0, 1, 2 and 9");
  std::vector<int> many(20), odd(40);
  std::iota(many.begin(), many.end(), 3);
  many.insert(many.begin(), {0, 1});
  EXPECT_EQ(ranks_text(many), "ranks 0, 1 and 3-22");
  for (std::size_t i = 0; i < odd.size(); ++i) odd[i] = static_cast<int>(2 * i);
  EXPECT_THAT(ranks_text(odd), testing::EndsWith(", 38 and 20 more"));
}

TEST(Filled, LeavesWhatFits) {
  const std::string text = "one  two\n\n" + std::string(80, 'x') + "\n    last\n";
  EXPECT_EQ(filled(text, 2), text);
  EXPECT_EQ(filled("no end of line", 2), "no end of line\n");
  EXPECT_EQ(filled("", 2), "");
}

TEST(Filled, HangsWhatGoesOver) {
  // 16 words of four letters are 79 columns.
  EXPECT_EQ(filled(words(17), 2), words(16) + "\n  four\n");
  EXPECT_EQ(filled(words(17), 0), words(16) + "\nfour\n");
  EXPECT_EQ(filled("      " + words(16), 2), "      " + words(15) + "\n        four\n");
  EXPECT_EQ(filled(words(40), 2), words(16) + "\n  " + words(15) + "\n  " + words(9) + "\n");
}

TEST(Filled, HangsBelowTheSecondColumn) {
  EXPECT_EQ(filled("  --option TEXT    " + words(13), 0),
            "  --option TEXT    " + words(12) + "\n" + std::string(19, ' ') + "four\n");
  EXPECT_EQ(filled("  " + words(12) + "  " + words(5), 2),
            "  " + words(12) + "  " + words(3) + "\n    " + words(2) + "\n")
      << "two spaces far to the right make no column";
}

TEST(Filled, KeepsALongWordWhole) {
  const std::string path = "/a" + std::string(90, 'b');
  EXPECT_EQ(filled("report: " + path + " and more", 2), "report:\n  " + path + "\n  and more\n");
  EXPECT_EQ(filled("    " + path, 2), "    " + path + "\n");
  EXPECT_EQ(filled(std::string(100, ' ') + "x", 2), std::string(100, ' ') + "x\n");
}

TEST(Wrapped, ActsUponNoTerminal) {
  EXPECT_EQ(wrapped("one\ttwo\n\x1b[2Jthree", "  "), "  one two \\x1b[2Jthree\n");
}

class Told : public ::testing::Test {
 protected:
  Countdown::Output place(bool rewrites) {
    return {&out_, rewrites, [this] { return now_s_ * 1'000'000'000; }};
  }
  std::string said() {
    const auto text = out_.str();
    out_.str("");
    return text;
  }
  std::int64_t now_s_ = 1000;
  std::ostringstream out_;
};

TEST_F(Told, ByWhatWasMeasured) {
  Countdown countdown("variant", {{"correct", 2.5}, {"broken", 4}, {"late", 200}}, place(false));
  countdown.next();
  EXPECT_EQ(said(), "variant 1 of 3: correct, about 4 min left\n");
  now_s_ += 60;  // whatever it took this time
  countdown.next();
  EXPECT_EQ(said(), "variant 2 of 3: broken, about 4 min left\n");
  countdown.next();
  EXPECT_EQ(said(), "variant 3 of 3: late, about 4 min left\n");
}

TEST_F(Told, ByTheMeanOfThisRunWhereNothingWas) {
  Countdown countdown("variant", {{"a"}, {"b"}, {"c", 30}, {"d"}}, place(false));
  countdown.next();
  EXPECT_EQ(said(), "variant 1 of 4: a\n") << "nothing is known yet";
  now_s_ += 4;
  countdown.next();
  EXPECT_EQ(said(), "variant 2 of 4: b, about 38 s left\n");
  now_s_ += 8;
  countdown.next();
  EXPECT_EQ(said(), "variant 3 of 4: c, about 36 s left\n");
  now_s_ += 30;
  countdown.next();
  EXPECT_EQ(said(), "variant 4 of 4: d, about 14 s left\n");
}

TEST_F(Told, OnALineThatIsRewritten) {
  {
    Countdown countdown("variant", {{"a", 0.1}, {std::string(100, 'b'), 0.1}}, place(true));
    countdown.next();
    EXPECT_EQ(said(), "variant 1 of 2: a, about 1 s left");
    countdown.clear();
    EXPECT_EQ(said(), "\r\033[K");
    countdown.clear();
    EXPECT_EQ(said(), "") << "there is nothing to take away";
    countdown.next();
    EXPECT_EQ(said(), "variant 2 of 2: " + std::string(63, 'b')) << "one line of 79 columns";
  }
  EXPECT_EQ(said(), "\r\033[K") << "nothing is left behind, whatever ended the work";
}

TEST_F(Told, Nowhere) {
  Countdown countdown("variant", {{"a"}}, {});
  countdown.next();
  countdown.clear();
  EXPECT_EQ(said(), "");
}

}  // namespace
}  // namespace lockstep
