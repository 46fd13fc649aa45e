#include <fcntl.h>
#include <lockstep/archive/new_file.h>
#include <lockstep/base/error.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::archive {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporarySuffix = ".lockstep-saving";
constexpr int kMostLinks = 40;  // Linux's own limit
// A tenth of a second together.
constexpr int kLockAttempts = 50;
constexpr auto kLockPause = std::chrono::milliseconds(2);

fs::path temporary_of(const fs::path& path) {
  return path.parent_path() / ("." + path.filename().string() + std::string(kTemporarySuffix));
}

bool is_temporary(const std::string& name) {
  return name.starts_with('.') && name.ends_with(kTemporarySuffix);
}

[[noreturn]] void fail(const fs::path& path, const std::string& call) {
  const int error = errno;
  throw Error("cannot save " + path.string() + ": " + call + ": " + std::strerror(error));
}

// The file that writing to `path` through its links would reach, there or not. weakly_canonical stops
// at a link to what is not there.
fs::path target_of(fs::path path) {
  const auto given = path;
  for (int links = 0; links <= kMostLinks; ++links) {
    std::error_code error;
    if (!fs::is_symlink(fs::symlink_status(path, error))) return path;
    const auto target = fs::read_symlink(path, error);
    if (error)
      throw Error("cannot save " + given.string() + ": readlink of " + path.string() + ": " +
                  error.message());
    path = path.parent_path() / target;
  }
  throw Error("cannot save " + given.string() +
              ": it is one of symbolic links that point to one another, or to too many others");
}

// 1 while the name is the open file's; 0 when it was taken away meanwhile, by a writer that finished;
// -1 and errno where that cannot be told.
int still_named(int fd, const fs::path& name, System& system) {
  struct stat of_file {
  }, of_name{};
  if (system.fstat(fd, &of_file) != 0) return -1;
  if (system.stat(name.c_str(), &of_name) != 0) return errno == ENOENT ? 0 : -1;
  return of_file.st_ino == of_name.st_ino && of_file.st_dev == of_name.st_dev;
}

}  // namespace

Lock try_lock(int fd, System& system) {
  while (system.flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    return errno == EWOULDBLOCK ? Lock::kBusy : Lock::kUnknown;
  }
  return Lock::kTaken;
}

NewFile::NewFile(fs::path path, const NewFileOptions& options)
    : path_(std::move(path)),
      sync_(options.sync),
      system_(options.system ? *options.system : real_system()) {
  path_ = options.follow_link ? target_of(fs::absolute(path_)) : fs::absolute(path_);
  if (!path_.has_filename()) throw UsageError("cannot save " + path_.string() + ": no file's name");
  temporary_ = temporary_of(path_);
  std::error_code error;
  fs::create_directories(path_.parent_path(), error);
  if (error)
    throw Error("cannot save " + path_.string() +
                ": its folder cannot be made: " + error.message());
  open_temporary();
}

void NewFile::open_temporary() {
  while (true) {
    fd_ = system_.open(temporary_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd_ < 0) fail(path_, "open of " + temporary_.string());
    try {
      lock_temporary();
      if (take_over()) return;
    } catch (...) {
      system_.close(fd_);
      throw;
    }
    system_.close(fd_);  // of a file that is not the temporary any more: once again
  }
}

// Another's remove_leftovers may hold the lock, too, when it comes between open and flock; it gives it
// up at once. Whoever keeps it is saving.
void NewFile::lock_temporary() {
  for (int attempt = 1; try_lock(fd_, system_) == Lock::kBusy; ++attempt) {
    if (attempt == kLockAttempts)
      throw Error("cannot save " + path_.string() +
                  ": it is being saved already, by another process or thread. One rank saves a "
                  "checkpoint, usually rank 0, and two jobs need two places.");
    std::this_thread::sleep_for(kLockPause);
  }
}

// False where the locked file was finished or removed while it was waited for; else empties it.
bool NewFile::take_over() {
  const int named = still_named(fd_, temporary_, system_);
  if (named < 0) fail(path_, "stat of " + temporary_.string());
  if (named == 0) return false;
  if (system_.ftruncate(fd_, 0) != 0) fail(path_, "ftruncate of " + temporary_.string());
  return true;
}

NewFile::~NewFile() {
  if (fd_ < 0) return;
  if (!renamed_) system_.unlink(temporary_.c_str());  // before the lock goes
  system_.close(fd_);
}

void NewFile::append(std::string_view bytes) {
  write_at(size_, bytes);
  size_ += bytes.size();
}

void NewFile::patch(std::uint64_t offset, std::string_view bytes) {
  write_at(offset, bytes);
}

void NewFile::write_at(std::uint64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const auto count = system_.pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) errno = ENOSPC;  // no progress, no reason
    if (count <= 0) fail(path_, "write to " + temporary_.string());
    bytes.remove_prefix(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
}

void NewFile::commit() {
  if (sync_ && system_.fsync(fd_) != 0) fail(path_, "fsync of " + temporary_.string());
  // Renamed while locked: nobody takes the temporary over in between.
  if (system_.rename(temporary_.c_str(), path_.c_str()) != 0)
    fail(path_, "rename of " + temporary_.string());
  renamed_ = true;
  const int fd = std::exchange(fd_, -1);
  // Where nothing was synced, a network file system may say only now that it could not write.
  if (system_.close(fd) != 0 && !sync_) fail(path_, "close, after the file was put in its place");
  if (sync_)
    sync_folder(path_.parent_path(), system_,
                "saved " + path_.string() + ", but a power cut may undo it");
}

void sync_folder(const fs::path& folder, System& system, const std::string& what) {
  const auto failed = [&](const char* call, int error) {
    throw Error(what + ": " + call + " of " + folder.string() + ": " + std::strerror(error));
  };
  const int fd = system.open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (fd < 0) failed("open", errno);
  const int error = system.fsync(fd) == 0 ? 0 : errno;
  system.close(fd);
  if (error != 0 && error != EINVAL) failed("fsync", error);  // EINVAL: folders need none here
}

int remove_leftovers(const fs::path& folder, System& system) {
  std::vector<fs::path> found;
  std::error_code unreadable;  // then there is nothing to clean
  for (const auto& entry : fs::directory_iterator(folder, unreadable))
    if (is_temporary(entry.path().filename().string())) found.push_back(entry.path());
  int removed = 0;
  for (const auto& path : found) {
    const int fd = system.open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0);
    if (fd < 0) continue;
    if (try_lock(fd, system) == Lock::kTaken && still_named(fd, path, system) == 1 &&
        system.unlink(path.c_str()) == 0)
      ++removed;
    system.close(fd);
  }
  return removed;
}

}  // namespace lockstep::archive
