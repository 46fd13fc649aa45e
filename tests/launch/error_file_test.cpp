// What a rank writes about its own end, for us and for torchrun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/base/clock.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/launch/error_file.h>
#include <lockstep/launch/launch.h>

#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

namespace lockstep::launch {
namespace {

class ErrorFile : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("LOCKSTEP_ERROR_FILE", own().c_str(), 1);
    setenv("TORCHELASTIC_ERROR_FILE", torchrun().c_str(), 1);
  }
  void TearDown() override {
    unsetenv("LOCKSTEP_ERROR_FILE");
    unsetenv("TORCHELASTIC_ERROR_FILE");
  }
  std::filesystem::path own() const { return folder_.path() / "own.json"; }
  std::filesystem::path torchrun() const { return folder_.path() / "torchrun.json"; }

  TemporaryFolder folder_{"lockstep-error"};
};

TEST_F(ErrorFile, OwnReportIsReadBack) {
  const std::int64_t before = monotonic_ns();
  report_error(UsageError("line one\n\"line\" two"));
  const auto report = read_error_file(own());
  ASSERT_TRUE(report);
  EXPECT_EQ(report->type, "lockstep::UsageError");
  EXPECT_EQ(report->text, "line one\n\"line\" two");
  EXPECT_FALSE(report->collective);
  EXPECT_GE(report->raised_ns, before);
  EXPECT_LE(report->raised_ns, monotonic_ns());
}

TEST_F(ErrorFile, CollectiveErrorIsMarkedAndKeepsItsFields) {
  report_error(CollectiveError(2, "broadcast", 9, std::chrono::milliseconds(1500), "timed out"));
  EXPECT_TRUE(read_error_file(own())->collective);
  const auto report = nlohmann::json::parse(read_file(own()));
  EXPECT_EQ(report.at("rank"), 2);
  EXPECT_EQ(report.at("operation"), "broadcast");
  EXPECT_EQ(report.at("sequence"), 9);
  EXPECT_EQ(report.at("timeout_ms"), 1500);
}

TEST_F(ErrorFile, TorchrunsFormat) {
  const std::time_t before = std::time(nullptr);
  report_error(Error("out of data"));
  const auto message = nlohmann::json::parse(read_file(torchrun())).at("message");
  EXPECT_EQ(message.at("message"), "lockstep::Error: out of data");
  const auto extra = message.at("extraInfo");
  EXPECT_EQ(extra.at("py_callstack"), "lockstep::Error: out of data");
  EXPECT_GE(std::stoll(extra.at("timestamp").get<std::string>()), before);
}

TEST_F(ErrorFile, BytesThatAreNotTextDoNotLoseTheReport) {
  report_error(Error("bad \xff byte"));
  EXPECT_EQ(read_error_file(own())->text, "bad \xef\xbf\xbd byte");
}

TEST_F(ErrorFile, OnePathThatFailsDoesNotCostTheOther) {
  setenv("LOCKSTEP_ERROR_FILE", "/proc/nowhere/own.json", 1);
  report_error(Error("text"));
  EXPECT_TRUE(std::filesystem::exists(torchrun()));
}

TEST_F(ErrorFile, WritesNothingWhereNobodyAsks) {
  TearDown();
  report_error(Error("text"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(ErrorFile, WhatIsNotAReportIsNone) {
  EXPECT_FALSE(read_error_file(own()));
  for (const char* text : {"", "{", "[]", "null", "{\"text\": 1}", "{\"text\": \"only\"}"}) {
    write_file(own(), text);
    EXPECT_FALSE(read_error_file(own())) << text;
  }
}

}  // namespace
}  // namespace lockstep::launch
