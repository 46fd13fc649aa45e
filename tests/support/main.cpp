// GoogleTest's main, with two changes: a run in which a case skips, or none is there, exits with 77, so that CTest
// says "skipped" and never "passed"; and after every case it is looked for what the case has left behind.
#include <gtest/gtest.h>
#include <lockstep/base/end_process.h>
#include <lockstep/base/exit_code.h>

#include "nothing_left.h"

int main(int argc, char** argv) {
  lockstep::test::own_shared_memory();
  ::testing::InitGoogleTest(&argc, argv);
  auto& all = *::testing::UnitTest::GetInstance();
  all.listeners().Append(new lockstep::test::NothingLeft);  // which takes it over
  const int failed = RUN_ALL_TESTS();
  if (failed == 0 && (all.skipped_test_count() > 0 || all.test_to_run_count() == 0))
    lockstep::end_process(lockstep::kSkipped);
  lockstep::end_process(failed);
}
