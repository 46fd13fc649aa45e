#include <fcntl.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

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

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!in || !(text << in.rdbuf() || in.peek() == std::ifstream::traits_type::eof()))
    fail("cannot read", path);
  return text.str();
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  if (error)
    throw Error("cannot create the folder " + path.parent_path().string() + ": " + error.message());
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
