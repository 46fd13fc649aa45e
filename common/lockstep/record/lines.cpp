#include <fcntl.h>
#include <lockstep/base/environment.h>
#include <lockstep/base/json_text.h>
#include <lockstep/record/lines.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
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

int open_for_owner(const std::filesystem::path& file) {
  return open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
              0600);
}

std::string source_of(const std::string& file, int number) {
  std::ifstream in(file);
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

std::atomic<int> answers_to{-1};
std::atomic<const std::string*> answer{nullptr};

void tell_where(int) {
  constexpr std::string_view none = "no line is known\n";
  const int error = errno;
  const auto* known = answer.load();
  const auto text = known != nullptr ? std::string_view(*known) : none;
  // Nobody can be told if this fails.
  [[maybe_unused]] const auto written = ::write(answers_to.load(), text.data(), text.size());
  errno = error;
}

void answer_in(const std::filesystem::path& file) {
  struct sigaction action {};
  action.sa_handler = tell_where;
  action.sa_flags = SA_RESTART;
  sigaction(SIGRTMIN, &action, nullptr);
  answers_to = open_for_owner(file);  // from now on this process may be asked
}

void answer_no_more() {
  answer = nullptr;  // it is of lines that are about to go
  if (answers_to < 0) return;
  signal(SIGRTMIN, SIG_IGN);
  close(answers_to.exchange(-1));
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
  const int descriptor = open_for_owner(file_);
  if (descriptor < 0) return;
  [[maybe_unused]] const auto written = ::write(descriptor, text.data(), text.size());
  close(descriptor);
}

}  // namespace lockstep::record
