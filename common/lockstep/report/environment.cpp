#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/report/lesson_report.h>

#include <fstream>
#include <thread>

namespace lockstep::report {
namespace {

std::string first_word(const std::string& text) {
  return text.substr(0, text.find_first_of(" \n"));
}

// What .git says is checked out, read as files: a report must not depend on git being installed.
std::string git_revision(const std::filesystem::path& source_folder) {
  try {
    const auto git = source_folder / ".git";
    const std::string head = read_file(git / "HEAD");
    if (head.rfind("ref: ", 0) != 0) return first_word(head);
    const std::string name = first_word(head.substr(5));
    if (std::filesystem::exists(git / name)) return first_word(read_file(git / name));
    const std::string packed = read_file(git / "packed-refs");
    const auto end = packed.find(" " + name + "\n");
    if (end != std::string::npos && end >= 40) return packed.substr(end - 40, 40);
  } catch (const Error&) {
    // Not a checkout.
  }
  return "unknown";
}

std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown";
}

}  // namespace

Environment environment_here(const std::filesystem::path& source_folder) {
  Environment environment;
  environment.git_revision = git_revision(source_folder);
  environment.compiler = __VERSION__;
  environment.cpu = cpu_name();
  environment.processors = static_cast<int>(std::thread::hardware_concurrency());
  return environment;
}

}  // namespace lockstep::report
