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

}  // namespace
}  // namespace lockstep::detail
