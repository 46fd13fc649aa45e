#include <lockstep/base/error.h>
#include <lockstep/course/lessons.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

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

bool names(const LessonEntry& lesson, const std::string& wanted) {
  const std::string number = lesson.name.substr(0, 2);
  return wanted == lesson.name || wanted == number || "0" + wanted == number ||
         wanted == lesson.name.substr(3);
}

}  // namespace

std::vector<LessonEntry> find_lessons(const std::filesystem::path& source,
                                      const std::filesystem::path& build) {
  std::vector<LessonEntry> lessons;
  for (const auto& entry : std::filesystem::directory_iterator(source / "lessons")) {
    const std::string name = entry.path().filename();
    if (!entry.is_directory() || name.size() < 4 || name[2] != '_') continue;
    lessons.push_back({name, title_of(entry.path() / "lesson.md"), build / "bin" / name});
  }
  std::sort(lessons.begin(), lessons.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return lessons;
}

LessonEntry find_lesson(const std::vector<LessonEntry>& lessons, const std::string& wanted) {
  std::string all;
  for (const auto& lesson : lessons) {
    if (names(lesson, wanted)) return lesson;
    all += "\n  " + lesson.name;
  }
  throw UsageError("there is no lesson \"" + wanted + "\"; there are:" + all);
}

int run_program(const std::filesystem::path& program, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = {program.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  if (const int error =
          posix_spawn(&child, program.c_str(), nullptr, nullptr, argv.data(), environ);
      error != 0)
    throw Error("cannot start " + program.string() + ": " + std::strerror(error) +
                "; build it with ./lockstep run");
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace lockstep::course
