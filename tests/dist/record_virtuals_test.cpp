// Every virtual of c10d::Backend is overridden by ObservedBackend, or stands in a list with a
// reason: read from the header of the torch that is built against, so that a new torch says what it
// adds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/file.h>

#include <map>
#include <regex>
#include <set>

namespace lockstep {
namespace {

// torch 2.15's additions. The first five forward to the older names, which are overridden.
const std::map<std::string, std::string> kLeftToBackend = {
    {"all_gather_single", "calls _allgather_base"},
    {"all_gather_single_coalesced", "calls allgather_into_tensor_coalesced"},
    {"reduce_scatter_single", "calls _reduce_scatter_base"},
    {"reduce_scatter_single_coalesced", "calls reduce_scatter_tensor_coalesced"},
    {"all_to_all_single", "calls alltoall_base"},
    {"supportsReconfigure", "refused: the ranks would change under the trace"},
    {"get_reconfigure_handle", "refused, as above"},
    {"reconfigure", "refused, as above"},
    {"supportsWindow", "refused: one-sided operations are no collectives"},
    {"new_window", "refused, as above"},
    {"suspend", "refused: torch has no macro that tells whether it exists"},
    {"resume", "refused, as above"},
    {"getMemoryStats", "refused, as above"},
};

std::string without_comments(const std::string& text) {
  return std::regex_replace(text, std::regex("//[^\n]*"), "");
}

std::set<std::string> virtuals_of(const std::string& header) {
  std::set<std::string> names;
  const std::regex declaration(R"(\bvirtual\s[^;{}()=]*?\b(\w+)\s*\()");
  for (std::sregex_iterator at(header.begin(), header.end(), declaration), end; at != end; ++at)
    names.insert((*at)[1]);
  return names;
}

std::set<std::string> overrides_of(const std::string& source) {
  std::set<std::string> names;
  const std::regex definition(R"(\b(\w+)\s*\([^;{}]*\)\s*(?:const\s+)?override\b)");
  for (std::sregex_iterator at(source.begin(), source.end(), definition), end; at != end; ++at)
    names.insert((*at)[1]);
  return names;
}

TEST(ObservedBackendVirtuals, AreAllForwardedOrRefused) {
  const auto declared = virtuals_of(without_comments(read_file(LOCKSTEP_BACKEND_HEADER)));
  const auto overridden = overrides_of(without_comments(read_file(LOCKSTEP_OBSERVED_BACKEND)));
  ASSERT_GT(declared.size(), 40u) << "the header was not understood";
  EXPECT_TRUE(declared.contains("getBackendName"));
  for (const auto& name : declared)
    EXPECT_TRUE(overridden.contains(name) || kLeftToBackend.contains(name))
        << name << " of c10d::Backend is neither overridden by ObservedBackend nor on the list";
}

TEST(ObservedBackendVirtuals, ANewOneIsNoticed) {
  EXPECT_THAT(virtuals_of("virtual int a() const {}\nvirtual std::vector<int>\n  b(\n  int) = 0;"),
              ::testing::ElementsAre("a", "b"));
  EXPECT_THAT(overrides_of("int a() const override { return f(); }\nint b() { return 1; }"),
              ::testing::ElementsAre("a"));
}

}  // namespace
}  // namespace lockstep
