// Writes down which lines of a C++ program began what is recorded: places_RANK.jsonl beside the trace, as a Python job
// has it. report/places.cpp reads it.
#pragma once

#include <lockstep/observe/observer.h>
#include <lockstep/trace/writer.h>

#include <array>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace lockstep::record {

// Each line once for each kind, with the first step at which it did so. Lines of this library are left out. Where a file
// cannot be written, or a source cannot be read, it goes without. Where LOCKSTEP_STACKS is set (`lockstep watch
// --timeout` does), SIGRTMIN is answered: stack_RANK_PID.txt then has the line that called the library last.
class Lines final : public Observer {
 public:
  // `folder`: where the writer's file is.
  Lines(const std::filesystem::path& folder, std::shared_ptr<trace::Writer> writer);
  ~Lines() override;
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  void began(const char* kind, const Place& place) override;

 private:
  struct Line {
    std::string kind, file;
    int number = 0;
    mutable std::string answer;  // to SIGRTMIN
    bool operator<(const Line& other) const;
  };
  // A call that was seen, by its constants' addresses. A step has few of them.
  struct Call {
    const char* kind = nullptr;
    const char* file = nullptr;
    int number = 0;
    const Line* line = nullptr;  // null: of the library
  };
  const Line* line_of(const char* kind, const Place& place);
  void write(const Line& line) const;

  std::mutex mutex_;
  std::shared_ptr<trace::Writer> writer_;
  std::filesystem::path file_;
  std::set<Line> lines_;
  std::array<Call, 16> calls_;
  std::size_t next_ = 0;
};

}  // namespace lockstep::record
