#include <fcntl.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/base/text.h>
#include <lockstep/course/lessons.h>
#include <lockstep/course/nearest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

namespace lockstep::course {
namespace {

// "# 05 set_epoch: another order every epoch" gives what follows the colon.
std::string title_of(const std::filesystem::path& page) {
  std::ifstream in(page);
  std::string line;
  std::getline(in, line);
  const auto colon = line.find(": ");
  return colon == std::string::npos ? "" : line.substr(colon + 2);
}

// While it lives, SIGINT and SIGTERM that somebody sends to this process reach the child, too. The terminal's Ctrl-C goes
// to the whole group: the child has it already. Several may live at once, on several threads.
class PassOn {
 public:
  explicit PassOn(pid_t child) {
    const std::lock_guard lock(mutex_);
    place_ = std::find(children_.begin(), children_.end(), 0);
    if (place_ == children_.end())
      throw Error("more programs at once than this one can look after");
    *place_ = child;
    if (living_++ > 0) return;
    struct sigaction action {};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = [](int signal, siginfo_t* info, void*) {
      if (info->si_code > 0) return;
      for (const pid_t each : children_)
        if (each != 0) kill(each, signal);
    };
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &before_[i]);
  }
  ~PassOn() {
    const std::lock_guard lock(mutex_);
    *place_ = 0;
    if (--living_ > 0) return;
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }
  PassOn(const PassOn&) = delete;
  PassOn& operator=(const PassOn&) = delete;

 private:
  using Children = std::array<volatile sig_atomic_t, 4>;
  static constexpr std::array<int, 2> kSignals = {SIGINT, SIGTERM};
  static inline Children children_{};
  static inline std::array<struct sigaction, 2> before_{};
  static inline std::mutex mutex_;
  static inline int living_ = 0;
  Children::iterator place_;
};

}  // namespace

std::vector<LessonEntry> find_lessons(const std::filesystem::path& source,
                                      const std::filesystem::path& build) {
  std::vector<LessonEntry> lessons;
  for (const auto& entry : std::filesystem::directory_iterator(source / "lessons")) {
    const std::string name = entry.path().filename();
    if (!entry.is_directory() || name.size() < 4 || name[2] != '_' || !is_number(name.substr(0, 2)))
      continue;
    lessons.push_back(
        {name, title_of(entry.path() / "lesson.md"), entry.path(), build / "bin" / name});
  }
  std::sort(lessons.begin(), lessons.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return lessons;
}

std::filesystem::path source_folder() {
  return LOCKSTEP_SOURCE_DIR;
}

std::vector<LessonEntry> lessons_of_clone() {
  const auto source = source_folder();
  const auto build = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const bool built_here =
      std::filesystem::exists(build / "CMakeCache.txt") || build.parent_path() == source / "build";
  if (!std::filesystem::exists(source / "lessons") || !built_here)
    throw Error(
        "the lessons are not installed: this command needs a clone of Lockstep; call ./lockstep "
        "there");
  return find_lessons(source, build);
}

bool is_named(const LessonEntry& lesson, const std::string& wanted) {
  const std::string number = lesson.name.substr(0, 2);
  return wanted == lesson.name || wanted == number || "0" + wanted == number ||
         wanted == lesson.name.substr(3);
}

bool is_number(const std::string& wanted) {
  return !wanted.empty() && wanted.find_first_not_of("0123456789") == std::string::npos;
}

namespace {

// Names the lessons on either side.
[[noreturn]] void refuse_number(const std::vector<LessonEntry>& lessons,
                                const std::string& wanted) {
  const auto number = wanted.size() == 1 ? "0" + wanted : wanted;
  const auto after = std::find_if(lessons.begin(), lessons.end(), [&](const LessonEntry& lesson) {
    return number.size() == 2 && lesson.name.substr(0, 2) > number;
  });
  std::vector<std::string> near;
  if (after != lessons.begin()) near.push_back(std::prev(after)->name);
  if (after != lessons.end()) near.push_back(after->name);
  throw UsageError("there is no lesson " + number + "; there are " +
                   lessons.front().name.substr(0, 2) + " to " + lessons.back().name.substr(0, 2) +
                   ", and next to it " + list(near) + ". ./lockstep list names them all");
}

}  // namespace

LessonEntry find_lesson(const std::vector<LessonEntry>& lessons, const std::string& wanted) {
  std::vector<std::string> names;
  for (const auto& lesson : lessons) {
    if (is_named(lesson, wanted)) return lesson;
    names.push_back(lesson.name);
  }
  if (is_number(wanted) && !lessons.empty()) refuse_number(lessons, wanted);
  throw UsageError("there is no lesson \"" + wanted + "\"; the nearest: " +
                   list(nearest(wanted, names)) + ". ./lockstep list names them all");
}

std::string correct_variant_of(const Description& description, const std::string& broken) {
  std::string part, correct;
  for (const auto& variant : description.variants)
    if (variant.name == broken && variant.kind == "broken") part = variant.part;
  for (const auto& variant : description.variants)
    if (variant.kind == "correct" && variant.part == part) correct = variant.name;
  return correct;
}

namespace {

// A program's standard output in a file, and no input.
class Output {
 public:
  explicit Output(const std::filesystem::path& file) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, file.c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0644);
  }
  ~Output() { posix_spawn_file_actions_destroy(&actions_); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  void take_errors() { posix_spawn_file_actions_adddup2(&actions_, STDOUT_FILENO, STDERR_FILENO); }
  const posix_spawn_file_actions_t* actions() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_{};
};

// Starts a program, with this terminal or with its output in a file, and waits.
int run_and_wait(const std::filesystem::path& program, const std::vector<std::string>& arguments,
                 const posix_spawn_file_actions_t* actions) {
  std::vector<std::string> words = {program.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  if (const int error =
          posix_spawn(&child, program.c_str(), actions, nullptr, argv.data(), environ);
      error != 0)
    throw Error("cannot start " + program.string() + ": " + std::strerror(error) +
                "; build it with ./lockstep run");
  const PassOn signals(child);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

int run_program(const std::filesystem::path& program, const std::vector<std::string>& arguments) {
  return run_and_wait(program, arguments, nullptr);
}

int run_quietly(const std::filesystem::path& program, const std::vector<std::string>& arguments,
                const std::filesystem::path& log) {
  Output output(log);
  output.take_errors();
  return run_and_wait(program, arguments, output.actions());
}

Description describe(const LessonEntry& lesson) {
  const TemporaryFolder folder("lockstep-describe");
  const auto answer = folder.path() / "answer.json";
  const Output output(answer);
  run_and_wait(lesson.program, {"--describe"}, output.actions());
  const auto described = nlohmann::json::parse(read_file(answer), nullptr, false);
  if (described.is_discarded())
    throw Error(lesson.program.string() +
                " --describe did not answer; build it with ./lockstep run");
  Description result{.default_world_size = described.at("default_world_size").get<int>(),
                     .variants = {}};
  for (const auto& variant : described.at("variants"))
    result.variants.push_back(
        {variant.at("name").get<std::string>(), variant.at("kind").get<std::string>(),
         variant.at("part").get<std::string>(), variant.at("min_world_size").get<int>()});
  return result;
}

}  // namespace lockstep::course
