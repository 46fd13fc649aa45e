#include <fcntl.h>
#include <lockstep/trace/reader.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <regex>
#include <string>

namespace lockstep::trace {

std::filesystem::path trace_file(const std::filesystem::path& folder, int rank) {
  return folder / ("rank_" + std::to_string(rank) + ".trace");
}

std::filesystem::path launcher_file(const std::filesystem::path& folder) {
  return folder / "launcher.trace";
}

bool is_of_a_rank(const std::filesystem::path& file) {
  static const std::regex kName(R"(rank_[0-9]+(\.[0-9a-f]+)?\.trace)");
  return std::regex_match(file.filename().string(), kName);
}

bool is_being_written(const std::filesystem::path& file) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return false;
  const bool locked = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(fd);
  return locked;
}

}  // namespace lockstep::trace
