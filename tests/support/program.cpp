#include "program.h"

#include <fcntl.h>
#include <lockstep/base/file.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <regex>
#include <stdexcept>

namespace lockstep::testing {
namespace {

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> all;
  for (auto& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

}  // namespace

Finished run(const std::vector<std::string>& command,
             const std::map<std::string, std::string>& environment) {
  const TemporaryFolder folder("lockstep-test");
  const auto out = folder.path() / "out", err = folder.path() / "err";
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, out.c_str(), O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_addopen(&files, 2, err.c_str(), O_WRONLY | O_CREAT, 0600);

  std::vector<std::string> words = command, variables;
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  for (char** variable = environ; *variable != nullptr; ++variable)
    variables.emplace_back(*variable);
  pid_t child = 0;
  const int error = posix_spawnp(&child, words[0].c_str(), &files, nullptr, pointers(words).data(),
                                 pointers(variables).data());
  posix_spawn_file_actions_destroy(&files);
  if (error != 0)
    throw std::runtime_error("cannot start " + words[0] + ": " + std::strerror(error));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(out),
          read_file(err)};
}

std::map<std::string, std::string> preloading(const std::filesystem::path& library,
                                              const std::string& folder) {
  const auto folders = library.parent_path().string() + (folder.empty() ? "" : ":" + folder);
  return {{"LD_PRELOAD", library.filename().string()}, {"LD_LIBRARY_PATH", folders}};
}

std::string unfilled(const std::string& text) {
  return std::regex_replace(text, std::regex("\n +"), " ");
}

}  // namespace lockstep::testing
