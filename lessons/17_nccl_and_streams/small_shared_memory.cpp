#include "small_shared_memory.h"

#include <fcntl.h>
#include <lockstep/base/error.h>
#include <lockstep/base/hash.h>
#include <lockstep/launch/launch.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include "parts.h"

using namespace lockstep;
namespace fs = std::filesystem;

namespace {

[[noreturn]] void unavailable(const std::string& why) {
  throw UnavailableError(
      "this part needs a small /dev/shm of its own, which takes root or user namespaces: " + why);
}

void expect(bool succeeded, const std::string& what) {
  if (!succeeded) unavailable(what + ": " + std::strerror(errno));
}

// Maps this user to itself in the new user namespace, and nobody else.
void map_user(uid_t user, gid_t group) {
  const auto write = [](const char* file, const std::string& text) {
    std::ofstream out(file);
    out << text << std::flush;
    expect(out.good(), std::string("writing ") + file);
  };
  write("/proc/self/setgroups", "deny");
  write("/proc/self/uid_map", std::to_string(user) + " " + std::to_string(user) + " 1\n");
  write("/proc/self/gid_map", std::to_string(group) + " " + std::to_string(group) + " 1\n");
}

void make_namespace(std::int64_t bytes) {
  const auto user = ::geteuid();
  const auto group = ::getegid();
  if (::unshare(CLONE_NEWNS) != 0) {
    expect(::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0, "unshare");
    map_user(user, group);
  }
  // Our mounts must not be seen outside.
  expect(::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "mount");
  const auto size = "mode=1777,size=" + std::to_string(bytes);
  expect(::mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, size.c_str()) == 0, "mount");
}

class Descriptor {
 public:
  explicit Descriptor(const std::string& file) : fd_(::open(file.c_str(), O_RDONLY | O_CLOEXEC)) {
    expect(fd_ >= 0, file);
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

void enter_namespace_of(const std::string& process) {
  const auto folder = fs::current_path();
  const auto of = [](const std::string& who, const char* which) {
    return "/proc/" + who + "/ns/" + which;
  };
  const Descriptor user(of(process, "user")), mounts(of(process, "mnt"));
  if (fs::read_symlink(of(process, "user")) != fs::read_symlink(of("self", "user")))
    expect(::setns(user.fd(), CLONE_NEWUSER) == 0, "setns");
  expect(::unshare(CLONE_FS) == 0 && ::setns(mounts.fd(), CLONE_NEWNS) == 0, "setns");
  fs::current_path(folder);
}

// Rank 0's process, or why it has no namespace.
std::string word_of_rank_zero(const fs::path& file) {
  const auto until = std::chrono::steady_clock::now() + kUntilAllAreThere;
  while (!fs::exists(file)) {
    if (std::chrono::steady_clock::now() > until) throw Error("rank 0 makes no /dev/shm");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::string word;
  std::getline(std::ifstream(file), word);
  return word;
}

trace::SharedMemory memory_for(const fs::path& folder, std::int64_t bytes) {
  struct statvfs room {};
  struct stat device {};
  if (::statvfs(folder.c_str(), &room) != 0 || ::stat(folder.c_str(), &device) != 0)
    throw Error(folder.string() + ": " + std::strerror(errno));
  const auto block = static_cast<std::int64_t>(room.f_frsize);
  return {.action = "reserve",
          .file_system = hash_bytes(&device.st_dev, sizeof(device.st_dev)),
          .needed = bytes,
          .free = block * static_cast<std::int64_t>(room.f_bavail),
          .total = block * static_cast<std::int64_t>(room.f_blocks)};
}

}  // namespace

void enter_small_shared_memory(const RankContext& context, std::int64_t bytes) {
  const auto place = launch::placement_from_environment().value_or(launch::Placement{});
  if (place.local_world_size < place.world_size)
    throw UnavailableError("this part's ranks share memory: they must be on one machine");
  const auto file = context.folder() / "namespace";
  if (context.rank() != 0) {
    const auto word = word_of_rank_zero(file);
    if (word.find_first_not_of("0123456789") != std::string::npos) throw UnavailableError(word);
    return enter_namespace_of(word);
  }
  const auto tell = [&](const std::string& word) {
    std::ofstream(file.string() + ".new") << word << "\n";
    fs::rename(file.string() + ".new", file);
  };
  try {
    make_namespace(bytes);
  } catch (const UnavailableError& error) {
    tell(error.what());
    throw;
  }
  tell(std::to_string(::getpid()));
}

SharedFile SharedFile::make(RankContext& context, const fs::path& file, std::int64_t bytes) {
  auto memory = memory_for(file.parent_path(), bytes);
  context.told().tell(memory);
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) throw Error(file.string() + ": " + std::strerror(errno));
  // Not ftruncate(), which accepts any size: touching a page without room then ends the process
  // (SIGBUS).
  memory.error = ::posix_fallocate(fd, 0, bytes);
  if (memory.error != 0) {
    ::close(fd);
    fs::remove(file);
    memory.action = "failed";
    context.told().tell(memory);
    // When this rank ends, its connections close. First let the others get theirs, or be refused.
    barrier(*context.group());
    throw Error("no room for " + std::to_string(bytes) + " bytes in " + file.string() + ": " +
                std::strerror(static_cast<int>(memory.error)) + "; " + std::to_string(memory.free) +
                " of " + std::to_string(memory.total) +
                " were free. Ask for less, or for a larger one (docker run --shm-size)");
  }
  return SharedFile(fd, bytes, file);
}

SharedFile SharedFile::open(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) throw Error(file.string() + ": " + std::strerror(errno));
  SharedFile shared(fd, static_cast<std::int64_t>(fs::file_size(file)), file);
  fs::remove(file);
  return shared;
}

SharedFile::SharedFile(int fd, std::int64_t bytes, const fs::path& file) : bytes_(bytes) {
  data_ =
      ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int error = errno;
  ::close(fd);
  if (data_ == MAP_FAILED) throw Error(file.string() + ": " + std::strerror(error));
}

SharedFile::SharedFile(SharedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

SharedFile::~SharedFile() {
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(bytes_));
}
