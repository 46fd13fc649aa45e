// The bound on calls that have none of their own.
#include <gtest/gtest.h>
#include <lockstep/dist/ends_within.h>

#include <stdexcept>

namespace lockstep::detail {
namespace {

using namespace std::chrono_literals;

TEST(EndsWithin, SaysWhetherTheCallHasEnded) {
  EXPECT_TRUE(ends_within(20s, [] {}));
  const auto over = std::make_shared<std::promise<void>>();
  EXPECT_FALSE(ends_within(50ms, [over] { over->get_future().wait(); }));
  over->set_value();  // lets go of the thread that was left behind
}

TEST(EndsWithin, ThrowsWhatTheCallThrows) {
  EXPECT_THROW(ends_within(20s, [] { throw std::out_of_range("too far"); }), std::out_of_range);
}

// Whoever has been told that the call has ended holds the last reference to what it owned.
TEST(EndsWithin, HasLetGoOfTheCallByThen) {
  for (int i = 0; i < 1000; ++i) {
    const auto owned = std::make_shared<int>(i);
    ASSERT_TRUE(ends_within(20s, [owned] {}));
    ASSERT_EQ(owned.use_count(), 1) << "after call " << i;
    EXPECT_THROW(ends_within(20s, [owned] { throw std::out_of_range("too far"); }),
                 std::out_of_range);
    ASSERT_EQ(owned.use_count(), 1) << "after the throw of call " << i;
  }
}

}  // namespace
}  // namespace lockstep::detail
