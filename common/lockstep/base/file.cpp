#include <fcntl.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace lockstep {
namespace {

[[noreturn]] void fail(const std::string& what, const std::filesystem::path& path) {
  throw Error(what + " " + path.string() + ": " + std::strerror(errno));
}

// An open descriptor and the name it was opened under, both undone unless `keep` was called.
class Draft {
 public:
  explicit Draft(const std::filesystem::path& target) : name_(target.string() + ".XXXXXX") {
    fd_ = mkostemp(name_.data(), O_CLOEXEC);
    if (fd_ < 0) fail("cannot write beside", target);
  }
  ~Draft() {
    if (fd_ >= 0) close(fd_);
    if (!name_.empty()) unlink(name_.c_str());
  }
  Draft(const Draft&) = delete;
  Draft& operator=(const Draft&) = delete;

  void fill(std::string_view text, const std::filesystem::path& target) {
    while (!text.empty()) {
      const ssize_t written = write(fd_, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("cannot write", target);
      text.remove_prefix(static_cast<std::size_t>(written));
    }
    if (fchmod(fd_, 0644) != 0 || fsync(fd_) != 0) fail("cannot write", target);
  }
  void rename_to(const std::filesystem::path& target) {
    if (rename(name_.c_str(), target.c_str()) != 0) fail("cannot replace", target);
    name_.clear();
  }

 private:
  std::string name_;
  int fd_ = -1;
};

}  // namespace

InputFile::InputFile(const std::filesystem::path& path, Links links) : path_(path) {
  // A fifo is opened without a writer, and refused then.
  fd_ = open(path.c_str(),
             O_RDONLY | O_CLOEXEC | O_NONBLOCK | (links == Links::refuse ? O_NOFOLLOW : 0));
  if (fd_ < 0 && errno == ELOOP && links == Links::refuse)
    throw Error("cannot read " + path.string() + ": it is a link");
  if (fd_ < 0) fail("cannot read", path);
  struct stat found {};
  if (fstat(fd_, &found) == 0 && S_ISREG(found.st_mode)) return;
  close(fd_);
  throw Error("cannot read " + path.string() + ": it is no regular file");
}

InputFile::~InputFile() {
  close(fd_);
}

std::uint64_t InputFile::size() const {
  struct stat found {};
  if (fstat(fd_, &found) != 0) fail("cannot read", path_);
  return static_cast<std::uint64_t>(found.st_size);
}

std::string InputFile::read(std::uint64_t offset, std::uint64_t size) const {
  constexpr std::uint64_t kPiece = std::uint64_t{1}
                                   << 20;  // the file may be smaller than is asked for
  std::string bytes;
  while (bytes.size() < size) {
    const auto before = bytes.size();
    bytes.resize(before + std::min(kPiece, size - before));
    const ssize_t count = pread(fd_, bytes.data() + before, bytes.size() - before,
                                static_cast<off_t>(offset + before));
    bytes.resize(before + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    if (count < 0 && errno != EINTR) fail("cannot read", path_);
    if (count == 0) break;
  }
  return bytes;
}

std::string read_file(const std::filesystem::path& path, InputFile::Links links,
                      std::uint64_t most) {
  const InputFile file(path, links);
  auto text = file.read(0, most + 1);
  if (text.size() > most)
    throw Error("cannot read " + path.string() + ": it has more than " + std::to_string(most) +
                " bytes");
  return text;
}

int open_own(const std::filesystem::path& file) {
  const int fd =
      open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (fd < 0) return -1;
  struct stat its {};
  if (fstat(fd, &its) == 0 && S_ISREG(its.st_mode) && its.st_uid == geteuid() && its.st_nlink == 1)
    return fd;
  close(fd);
  return -1;
}

int out_of_the_way(int fd) {
  constexpr rlim_t kMost = 1024;  // a higher number costs the kernel a larger table
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return fd;
  const auto least = static_cast<int>(std::min(limit.rlim_cur, kMost) / 4 * 3);
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, least);
  if (moved < 0) return fd;
  close(fd);
  return moved;
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  if (error)
    throw Error("cannot create the folder " + path.parent_path().string() + ": " + error.message());
  const auto there = std::filesystem::symlink_status(path, error);
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there))
    throw Error("cannot replace " + path.string() + ": it is " +
                (std::filesystem::is_symlink(there) ? "a link" : "no regular file"));
  Draft draft(path);
  draft.fill(text, path);
  draft.rename_to(path);
}

std::filesystem::path make_private_folder(const std::string& prefix) {
  std::error_code error;
  const auto parent = std::filesystem::temp_directory_path(error);
  if (error)
    throw Error("no temporary folder: " + error.message() + "; set TMPDIR to one that exists");
  std::string name = (parent / (prefix + "-XXXXXX")).string();
  if (mkdtemp(name.data()) == nullptr) fail("cannot create a folder under", parent);
  return name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;  // A destructor has nobody to tell.
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace lockstep
