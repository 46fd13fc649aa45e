// Options that make no sense are refused before anything is started.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/launch/launch.h>

#include <functional>

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;

TEST(LaunchOptions, NonsenseIsRefusedWithWhatIsWrong) {
  const TemporaryFolder folder("lockstep-options");
  const TemporaryFolder open_to_all("lockstep-options");
  std::filesystem::permissions(open_to_all.path(), std::filesystem::perms::all);
  write_file(folder.path() / "file", "");
  struct Case {
    const char* says;
    std::function<void(LaunchOptions&)> spoil;
  };
  const std::vector<Case> cases{
      {"no command", [](auto& options) { options.command.clear(); }},
      {"world_size must be at least 1, and is 0", [](auto& options) { options.world_size = 0; }},
      {"deadline", [](auto& options) { options.deadline = milliseconds(0); }},
      {"negative", [](auto& options) { options.grace = milliseconds(-1); }},
      {"negative", [](auto& options) { options.linger = milliseconds(-1); }},
      {"No such file", [](auto& options) { options.folder = "/proc/nowhere"; }},
      {"is not a folder", [&](auto& options) { options.folder = folder.path() / "file"; }},
      {"chmod 700", [&](auto& options) { options.folder = open_to_all.path(); }},
  };
  for (const auto& [says, spoil] : cases) {
    LaunchOptions options;
    options.command = {"true"};
    options.folder = folder.path();
    spoil(options);
    try {
      launch(options);
      ADD_FAILURE() << "accepted, though: " << says;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(says));
    }
  }
}

TEST(LaunchOptions, ProgramIsFoundThroughPathAndAnyDeadlineIsInRange) {
  const TemporaryFolder folder("lockstep-options");
  LaunchOptions options;
  options.command = {"true"};
  options.folder = folder.path();
  options.deadline = milliseconds::max();
  EXPECT_TRUE(launch(options).completed());
}

}  // namespace
}  // namespace lockstep::launch
