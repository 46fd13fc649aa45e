// Every virtual of c10d::Backend is overridden by ObservedBackend and by CheckedBackend, there or in
// the DecoratedBackend that both derive from, or stands in a list with a reason: read from the header
// of the torch that is built against, so that a new torch says what it adds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/file.h>

#include <map>
#include <regex>
#include <set>

#include "../support/checkout.h"

namespace lockstep {
namespace {

// The additions of torch 2.13 to 2.15. The first six forward to names that are overridden.
const std::map<std::string, std::string> kLeftToBackend = {
    {"all_gather_single", "calls _allgather_base"},
    {"all_gather_single_coalesced", "calls allgather_into_tensor_coalesced"},
    {"reduce_scatter_single", "calls _reduce_scatter_base"},
    {"reduce_scatter_single_coalesced", "calls reduce_scatter_tensor_coalesced"},
    {"all_to_all_single", "calls alltoall_base"},
    {"gather_into_tensor", "calls gather_single"},
    {"setBoundDeviceId", "kept, and passed on before the next operation"},
    {"getBoundDeviceId", "as above"},
    {"clone", "of Backend::Options, not of Backend"},
    {"startTimeEstimate", "refused: operations that are only estimated are no collectives"},
    {"endTimeEstimate", "refused, as above"},
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

// The virtuals of `header` that `source` does not override and the list does not name.
std::set<std::string> forgotten(const std::string& header, const std::string& source) {
  auto names = virtuals_of(without_comments(header));
  for (const auto& name : overrides_of(without_comments(source))) names.erase(name);
  for (const auto& [name, reason] : kLeftToBackend) names.erase(name);
  return names;
}

const std::string kBackendHeader = read_file(LOCKSTEP_C10D "/Backend.hpp");
const std::string kWorkHeader = read_file(LOCKSTEP_C10D "/Work.hpp");
std::string of_record(const std::string& file) {
  return read_file(testing::in_checkout("common/lockstep/record/" + file));
}
const std::string kDecoratedBackend = of_record("decorated_backend.h");
// Up to the class's end, in a file that has two with virtuals of the same names.
std::string class_in(const std::string& text, const std::string& name) {
  const auto begin = text.find("class " + name + " final");
  return begin == std::string::npos ? "" : text.substr(begin, text.find("\n};", begin) - begin);
}
const std::string kObserved = of_record("observed_backend.cpp");
const std::string kObservedBackend = kDecoratedBackend + class_in(kObserved, "ObservedBackend");
const std::string kCheckedBackend = kDecoratedBackend + of_record("checked_backend.cpp");
const std::string kObservedWork = class_in(kObserved, "ObservedWork");

TEST(ObservedVirtuals, AreAllForwardedOrRefused) {
  const auto declared = virtuals_of(without_comments(kBackendHeader));
  ASSERT_GT(declared.size(), 40u) << "the header was not understood";
  EXPECT_TRUE(declared.contains("getBackendName"));
  EXPECT_THAT(forgotten(kBackendHeader, kObservedBackend), ::testing::IsEmpty())
      << "of c10d::Backend: override them in DecoratedBackend, or name them in the list above";
  EXPECT_THAT(forgotten(kBackendHeader, kCheckedBackend), ::testing::IsEmpty())
      << "of c10d::Backend: override them in CheckedBackend too";
  ASSERT_GT(virtuals_of(without_comments(kWorkHeader)).size(), 10u);
  EXPECT_THAT(forgotten(kWorkHeader, kObservedWork), ::testing::IsEmpty())
      << "of c10d::Work: override them in ObservedWork";
}

TEST(ObservedVirtuals, APlantedOneIsFound) {
  auto header = kBackendHeader;
  const auto place = header.find("virtual void abort()");
  ASSERT_NE(place, std::string::npos);
  header.insert(place, "virtual c10::intrusive_ptr<Work> all_new(\n    at::Tensor& output);\n  ");
  EXPECT_THAT(forgotten(header, kObservedBackend), ::testing::ElementsAre("all_new"));
  for (const auto& whole : {kObservedBackend, kCheckedBackend})
    for (const std::string name : {"abort", "send"}) {
      auto source = whole;
      const auto mine = source.find(" " + name + "(");
      ASSERT_NE(mine, std::string::npos);
      source.replace(mine, name.size() + 1, " mine");
      EXPECT_THAT(forgotten(kBackendHeader, source), ::testing::ElementsAre(name));
    }
}

TEST(ObservedVirtuals, AreReadAsTheCompilerReadsThem) {
  EXPECT_THAT(virtuals_of("virtual int a() const {}\nvirtual std::vector<int>\n  b(\n  int) = 0;"),
              ::testing::ElementsAre("a", "b"));
  EXPECT_THAT(overrides_of("int a() const override { return f(); }\nint b() { return 1; }"),
              ::testing::ElementsAre("a"));
}

}  // namespace
}  // namespace lockstep
