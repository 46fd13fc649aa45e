#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/base/json_text.h>
#include <lockstep/record/lines.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <tuple>
#include <utility>

namespace lockstep::record {
namespace {

constexpr std::size_t kLongest = 200;  // of what stands there

// The library's folder, as this file was compiled.
std::string_view own_folder() {
  constexpr std::string_view here = __FILE__, name = "record/lines.cpp";
  return here.substr(0, here.size() - name.size());
}

bool is_own(const char* file) {
  return std::string_view(file).starts_with(own_folder());
}

std::string source_of(const std::string& file, int number) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 24;
  std::istringstream in;
  try {
    in.str(read_file(file, InputFile::Links::follow, kMost));
  } catch (const Error&) {
    return "";
  }
  std::string text;
  for (int i = 0; i < number && std::getline(in, text); ++i) {
  }
  if (!in) return "";
  const auto begin = text.find_first_not_of(" \t\r");
  if (begin == std::string::npos) return "";
  text = text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
  std::replace(text.begin(), text.end(), '\t', ' ');
  return text.substr(0, kLongest);
}

// ---- what `lockstep watch --timeout` asks ----

struct Answers {
  std::atomic<pid_t> process{0};  // that writes; 0: none
  int descriptor = -1;
  struct stat file {};
} answers;
std::atomic<const std::string*> answer{nullptr};

// A child that was forked says nothing. A program may close what it has not opened, and get the number for its data.
bool may_answer() {
  struct stat now {};
  return answers.process == getpid() && fstat(answers.descriptor, &now) == 0 &&
         now.st_dev == answers.file.st_dev && now.st_ino == answers.file.st_ino;
}

void tell_where(int) {
  constexpr std::string_view none = "no line is known\n";
  const int error = errno;
  const auto* known = answer.load();
  const auto text = known != nullptr ? std::string_view(*known) : none;
  // Nobody can be told if this fails.
  [[maybe_unused]] const auto written =
      may_answer() ? ::write(answers.descriptor, text.data(), text.size()) : 0;
  errno = error;
}

// Where the program uses the signal itself, it keeps it.
void answer_in(const std::filesystem::path& file) {
  struct sigaction action {};
  sigaction(SIGRTMIN, nullptr, &action);
  if (action.sa_handler != SIG_DFL) return;
  const int fd = open_own(file);
  if (fd < 0) return;
  answers.descriptor = out_of_the_way(fd);
  fstat(answers.descriptor, &answers.file);
  answers.process = getpid();
  action = {};
  action.sa_handler = tell_where;
  action.sa_flags = SA_RESTART;
  sigaction(SIGRTMIN, &action, nullptr);  // from now on this process may be asked
}

void answer_no_more() {
  answer = nullptr;  // it is of lines that are about to go
  if (answers.process != getpid()) return;
  struct sigaction action {};
  sigaction(SIGRTMIN, nullptr, &action);
  if (action.sa_handler == tell_where) signal(SIGRTMIN, SIG_DFL);
  if (may_answer()) close(answers.descriptor);
  answers.process = 0;
}

}  // namespace

bool Lines::Line::operator<(const Line& other) const {
  return std::tie(number, kind, file) < std::tie(other.number, other.kind, other.file);
}

Lines::Lines(const std::filesystem::path& folder, std::shared_ptr<trace::Writer> writer)
    : writer_(std::move(writer)) {
  const auto rank = std::to_string(writer_->participant().rank);
  file_ = folder / ("places_" + rank + ".jsonl");
  if (environment("LOCKSTEP_STACKS"))
    answer_in(folder / ("stack_" + rank + "_" + std::to_string(getpid()) + ".txt"));
}

Lines::~Lines() {
  answer_no_more();
}

void Lines::began(const char* kind, const Place& place) {
  const std::lock_guard lock(mutex_);
  const auto known = std::find_if(calls_.begin(), calls_.end(), [&](const Call& call) {
    return call.file == place.file && call.number == place.line && call.kind == kind;
  });
  const Line* line = nullptr;
  if (known != calls_.end()) {
    line = known->line;
  } else {
    line = line_of(kind, place);
    calls_.at(next_) = {kind, place.file, place.line, line};
    next_ = (next_ + 1) % calls_.size();
  }
  if (line != nullptr) answer = &line->answer;
}

const Lines::Line* Lines::line_of(const char* kind, const Place& place) {
  if (is_own(place.file)) return nullptr;
  try {
    const auto file = std::filesystem::absolute(place.file).lexically_normal().string();
    const auto [line, is_new] = lines_.insert({kind, file, place.line, {}});
    if (is_new) {
      line->answer =
          "  File \"" + file + "\", line " + std::to_string(place.line) + " in " + kind + "\n";
      write(*line);
    }
    return &*line;
  } catch (const std::exception&) {
    return nullptr;
  }
}

void Lines::write(const Line& line) const {
  const nlohmann::json object = {{"kind", line.kind},
                                 {"step", writer_->step()},
                                 {"file", line.file},
                                 {"line", line.number},
                                 {"source", source_of(line.file, line.number)}};
  const auto text = json_text(object) + "\n";
  const int descriptor = open_own(file_);
  if (descriptor < 0) return;
  [[maybe_unused]] const auto written = ::write(descriptor, text.data(), text.size());
  close(descriptor);
}

}  // namespace lockstep::record
