#include <fcntl.h>
#include <lockstep/archive/byte_source.h>
#include <lockstep/base/error.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace lockstep::archive {
namespace {

void check_range(std::uint64_t offset, std::size_t size, std::uint64_t there) {
  if (offset > there || size > there - offset)
    throw Error("expected " + std::to_string(size) + " bytes at offset " + std::to_string(offset) +
                ", found the end at " + std::to_string(there));
}

}  // namespace

FileSource::FileSource(const std::filesystem::path& path) {
  // Not blocking: opening a pipe would wait for its writer.
  fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) throw Error(std::string("cannot be opened: ") + std::strerror(errno));
  struct stat status {};
  const bool known = fstat(fd_, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    const std::string reason = known ? "is not a regular file" : std::strerror(errno);
    close(fd_);
    throw Error(reason);
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

FileSource::~FileSource() {
  close(fd_);
}

void FileSource::read(std::uint64_t offset, void* to, std::size_t size) const {
  check_range(offset, size, size_);
  auto* next = static_cast<char*>(to);
  while (size > 0) {
    const auto count = pread(fd_, next, size, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw Error(std::string("cannot be read: ") + std::strerror(errno));
    if (count == 0)
      throw Error("was cut to " + std::to_string(offset) + " bytes while it was read");
    next += count;
    offset += static_cast<std::uint64_t>(count);
    size -= static_cast<std::size_t>(count);
  }
}

void TextSource::read(std::uint64_t offset, void* to, std::size_t size) const {
  check_range(offset, size, text_.size());
  if (size > 0) std::memcpy(to, text_.data() + offset, size);
}

}  // namespace lockstep::archive
