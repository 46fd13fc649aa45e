#include <fcntl.h>
#include <lockstep/base/clock.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/base/random_word.h>
#include <lockstep/base/say.h>
#include <lockstep/trace/codec.h>
#include <lockstep/trace/format.h>
#include <lockstep/trace/own_file.h>
#include <lockstep/trace/writer.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <type_traits>
#include <variant>
#include <vector>

namespace lockstep::trace {
namespace {

constexpr std::size_t kGrowth = std::size_t{1} << 20;   // of the file: 1 MiB
constexpr std::size_t kLargest = std::size_t{1} << 32;  // a file: 4 GiB
// The file is mapped in windows, each when the one before is full: to reserve 4 GiB of address
// space at once would fail under ulimit -v. None is unmapped before the end, since a collective may
// be left long after it was entered.
constexpr std::size_t kWindow = std::size_t{1} << 26;       // 64 MiB
constexpr std::size_t kLeastWindow = std::size_t{1} << 21;  // where there is little left
constexpr std::size_t kWindows = 512;
constexpr std::size_t kPage = std::size_t{1} << 16;  // a multiple of any page's size

constexpr std::size_t kCollective = kind_of<Collective>();

std::atomic<int> forks{0};  // by which this process came

}  // namespace

class Writer::Impl {
  // The writers of this process. A child that is forked lets go of their files: it may outlive its parent, and would hold
  // their locks.
  class All {
   public:
    All() {
      pthread_atfork([] { all().mutex_.lock(); }, [] { all().mutex_.unlock(); },
                     [] { all().forked(); });
    }
    void join(Impl* writer) {
      const std::lock_guard lock(mutex_);
      writers_.insert(writer);
    }
    void leave(Impl* writer) {
      const std::lock_guard lock(mutex_);
      writers_.erase(writer);
    }

   private:
    void forked() {
      ++forks;
      for (auto* writer : writers_) writer->let_go();
      mutex_.unlock();
    }
    std::mutex mutex_;
    std::set<Impl*> writers_;
  };
  // Never destroyed: a process may fork at its very end.
  static All& all() {
    static auto& writers = *new All;
    return writers;
  }

 public:
  Impl(const std::filesystem::path& folder, const Participant& participant)
      : participant_(checked(participant)),
        path_(std::filesystem::absolute(file_of(folder, participant))) {
    // Made under another name and linked when its head is complete: whoever finds a trace, finds a
    // whole one.
    const auto draft = path_.string() + ".new." + random_word();
    fd_ = open(draft.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd_ < 0) fail_to_create();
    fd_ = out_of_the_way(fd_);
    try {
      flock(fd_, LOCK_EX | LOCK_NB);
      if (fstat(fd_, &made_) != 0) fail_to_create();
      make_room_for_the_head();
      write_header();
      if (link(draft.c_str(), path_.c_str()) != 0) {
        if (errno != EEXIST) fail_to_create();
        if (!may_stand_beside(participant, path_)) fail_as_taken();
        path_ = std::filesystem::absolute(file_beside(folder, participant));
        if (link(draft.c_str(), path_.c_str()) != 0) fail_to_create();
      }
    } catch (...) {
      let_go();
      unlink(draft.c_str());
      throw;
    }
    unlink(draft.c_str());
    all().join(this);
  }

  ~Impl() {
    end(false);
    all().leave(this);
    let_go();
  }

  const Participant& participant() const { return participant_; }
  void set_step(std::int64_t step) { step_.store(step, std::memory_order_relaxed); }
  std::int64_t step() const { return step_.load(std::memory_order_relaxed); }

  // Not a child that was forked: the trace is its parent's.
  bool is_of_this_process() const { return forks_ == forks.load(std::memory_order_relaxed); }

  void end(bool goes_on) {
    if (!is_of_this_process()) return;
    const std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true) || !is_whole()) return;
    if (goes_on) header().truncated.store(kWentOn, std::memory_order_release);
    header().closed.store(1, std::memory_order_release);
    // What is beyond the last record is zeros, so a file that keeps them is read just as well.
    capacity_ = header().length.load();
    [[maybe_unused]] const int cut = ftruncate(fd_, static_cast<off_t>(capacity_));
    flock(fd_, LOCK_UN);
  }

  std::string name_group(const std::string& name) {
    if (!is_of_this_process()) return name;
    const std::lock_guard lock(mutex_);
    const int number = ++groups_[name];
    return number == 1 ? name : name + "#" + std::to_string(number);
  }

  void append(const Payload& payload) {
    if (!is_of_this_process()) return;
    const std::lock_guard lock(mutex_);
    std::visit([&](const auto& event) { append_or_cut(event, payload.index()); }, payload);
  }

  std::uint64_t enter(const Collective& collective) {
    if (!is_of_this_process()) return 0;
    const std::lock_guard lock(mutex_);
    const auto offset = append_or_cut(collective, kCollective);
    if (offset == 0) return 0;
    header().entered.fetch_add(1, std::memory_order_relaxed);
    for (auto& place : header().in_flight) {
      std::uint64_t free = 0;
      if (place.compare_exchange_strong(free, offset, std::memory_order_release)) break;
    }
    return offset;
  }

  void leave(std::uint64_t offset, bool failed) {
    if (offset == 0 || !is_of_this_process()) return;
    const std::lock_guard lock(mutex_);
    if (!is_whole()) return;
    std::uint8_t* record = at(offset);
    auto* left = reinterpret_cast<std::int64_t*>(record + kLeftOffset);
    auto* failure = reinterpret_cast<std::int64_t*>(record + kFailedOffset);
    std::atomic_ref(*failure).store(failed ? 1 : 0, std::memory_order_relaxed);
    std::atomic_ref(*left).store(monotonic_ns(), std::memory_order_release);
    header().left.fetch_add(1, std::memory_order_relaxed);
    // With more than kBoard in flight, this one may have found no place.
    for (auto& place : header().in_flight) {
      std::uint64_t mine = offset;
      if (place.compare_exchange_strong(mine, 0, std::memory_order_release)) break;
    }
  }

 private:
  struct Window {
    std::uint64_t begin = 0;  // what it shows of the file, which may end before the window does
    std::uint64_t end = 0;
    std::uint8_t* base = nullptr;
  };

  FileHeader& header() { return *reinterpret_cast<FileHeader*>(windows_[0].base); }

  // Where the byte at `offset` of the file is in memory, for one that was reserved, up to the end
  // of its record.
  std::uint8_t* at(std::uint64_t offset) const {
    std::size_t i = window_count_ - 1;
    while (offset < windows_[i].begin) --i;
    return windows_[i].base + (offset - windows_[i].begin);
  }

  // The file as it is now; nothing where the descriptor is not the trace's any more: a program may close what it has not
  // opened, and another file of its own may have the number by now.
  std::optional<struct stat> file_now() const {
    struct stat now {};
    if (fstat(fd_, &now) != 0 || now.st_dev != made_.st_dev || now.st_ino != made_.st_ino)
      return std::nullopt;
    return now;
  }

  // A mapping holds the file's lock just as a descriptor does.
  void let_go() {
    unmap();
    if (file_now()) close(fd_);
    fd_ = -1;
  }

  // Whether all that is mapped is still in the file. Asked before each store: where somebody has cut the file, a store
  // would be a SIGBUS.
  bool is_whole() {
    if (lost_) return false;
    auto now = file_now();
    if (!now) {
      fd_ = open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
      if (now = file_now(); now) {
        fd_ = out_of_the_way(fd_);
        flock(fd_, LOCK_EX | LOCK_NB);
      } else if (fd_ >= 0) {
        close(std::exchange(fd_, -1));
      }
    }
    lost_ = !now || now->st_nlink == 0 || static_cast<std::uint64_t>(now->st_size) < capacity_;
    if (lost_) tell_end(now && now->st_nlink > 0 ? "somebody has cut it" : "it was removed");
    return !lost_;
  }

  [[noreturn]] void fail_as_taken() const {
    throw Error("there is a trace already: " + path_.string() +
                "; give every run a folder of its own");
  }

  [[noreturn]] void fail_to_create() const {
    throw Error("cannot create the trace " + path_.string() + ": " + std::strerror(errno));
  }

  void make_room_for_the_head() {
    try {
      reserve(0, kHeaderSize);
    } catch (const Error& error) {
      throw Error("cannot create the trace " + path_.string() + ": " + error.what());
    }
  }

  // Makes the file hold a record of `size` bytes at `offset`, with blocks on disk behind them: a
  // full disk is found here, and not as a SIGBUS in the middle of a store. Throws Error where it
  // cannot.
  void reserve(std::uint64_t offset, std::size_t size) {
    const std::uint64_t needed = offset + size;
    if (needed > kLargest) throw Error("it holds at most 4 GiB");
    if (needed > capacity_) {
      const std::uint64_t wanted = (needed + kGrowth - 1) / kGrowth * kGrowth;
      int error = EINTR;  // which a signal may give on a tmpfs
      while (error == EINTR)
        error = posix_fallocate(fd_, static_cast<off_t>(capacity_),
                                static_cast<off_t>(wanted - capacity_));
      if (error != 0) throw Error(std::string("it cannot grow: ") + std::strerror(error));
      capacity_ = wanted;
    }
    const auto count = window_count_;
    if (count == 0 || needed > windows_[count - 1].end) map_window(offset, size);
  }

  // A window in which the record that begins at `offset` is whole.
  void map_window(std::uint64_t offset, std::size_t size) {
    const auto count = window_count_;
    if (count == kWindows) throw Error("it cannot be mapped in more pieces");
    const std::uint64_t begin = offset / kPage * kPage;
    const std::size_t least = (offset - begin + size + kPage - 1) / kPage * kPage;
    for (std::size_t length = std::max(kWindow, least);; length = std::max(length / 2, least)) {
      void* base = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_,
                        static_cast<off_t>(begin));
      if (base != MAP_FAILED) {
        windows_[count] = {begin, begin + length, static_cast<std::uint8_t*>(base)};
        ++window_count_;
        return;
      }
      if (length <= std::max(kLeastWindow, least))
        throw Error(std::string("it cannot be mapped: ") + std::strerror(errno));
    }
  }

  void unmap() {
    for (std::size_t i = 0; i < window_count_; ++i)
      munmap(windows_[i].base, windows_[i].end - windows_[i].begin);
    window_count_ = 0;
  }

  void write_header() {
    auto& head = header();
    head.magic = kMagic;
    head.version = kVersion;
    head.byte_order = kByteOrder;
    head.rank = participant_.rank;
    head.world_size = participant_.world_size;
    participant_.kind.copy(head.kind.data(), head.kind.size() - 1);
    head.pid = getpid();
    head.started_ns = monotonic_ns();
    head.started_unix_ns =
        std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
    head.length.store(kHeaderSize, std::memory_order_release);
  }

  // The record's offset; 0 where there is no room for it.
  template <class T>
  std::uint64_t append_or_cut(const T& event, std::size_t kind) {
    if (ended_ || !is_whole() || header().truncated.load(std::memory_order_relaxed) != 0) return 0;
    try {
      return append_locked(event, kind);
    } catch (const std::exception& error) {  // no memory for the buffer, too
      cut(error.what());
      return 0;
    }
  }

  void cut(const char* reason) {
    header().truncated.store(kNoRoom, std::memory_order_release);
    tell_end(reason);
  }

  void tell_end(const char* reason) const {
    say("lockstep: the trace " + path_.string() + " ends here, and the program goes on: " + reason +
        "\n");
  }

  template <class T>
  std::uint64_t append_locked(const T& event, std::size_t kind) {
    buffer_.assign(sizeof(RecordHeader), 0);
    if constexpr (std::is_same_v<T, Collective>) buffer_.resize(kFailedOffset);  // left_ns: 0
    Encoder encoder(buffer_);
    // visit() serves reading and writing and so takes a non-const event; an Encoder changes
    // nothing.
    const_cast<T&>(event).visit(encoder);
    buffer_.resize((buffer_.size() + 7) / 8 * 8, 0);
    if (buffer_.size() > kLargestRecord) throw Error("an event has more than 256 MiB");
    const auto offset = header().length.load(std::memory_order_relaxed);
    reserve(offset, buffer_.size());
    const RecordHeader record{static_cast<std::uint32_t>(buffer_.size()),
                              static_cast<std::uint16_t>(kind), 0, monotonic_ns(), step()};
    std::memcpy(buffer_.data(), &record, sizeof record);
    std::memcpy(at(offset), buffer_.data(), buffer_.size());
    header().length.store(offset + buffer_.size(), std::memory_order_release);
    return offset;
  }

  const int forks_ = forks.load();
  Participant participant_;
  std::filesystem::path path_;
  int fd_ = -1;
  struct stat made_ {};  // the file, as it was made
  std::atomic<std::int64_t> step_{-1};
  std::mutex mutex_;  // of everything below
  std::array<Window, kWindows> windows_;
  std::size_t window_count_ = 0;
  bool ended_ = false, lost_ = false;
  std::uint64_t capacity_ = 0;
  std::vector<std::uint8_t> buffer_;  // of the record being written; kept: it seldom allocates
  std::map<std::string, int> groups_;
};

Writer::Writer(const std::filesystem::path& folder, const Participant& participant)
    : impl_(std::make_unique<Impl>(folder, participant)) {}
Writer::~Writer() = default;

const Participant& Writer::participant() const {
  return impl_->participant();
}
bool Writer::is_of_this_process() const {
  return impl_->is_of_this_process();
}
std::string Writer::name_group(const std::string& name) {
  return impl_->name_group(name);
}
void Writer::set_step(std::int64_t step) {
  impl_->set_step(step);
}
std::int64_t Writer::step() const {
  return impl_->step();
}
void Writer::record(const Payload& payload) {
  impl_->append(payload);
}
std::uint64_t Writer::enter(const Collective& collective) {
  return impl_->enter(collective);
}
void Writer::leave(std::uint64_t handle, bool failed) {
  impl_->leave(handle, failed);
}
void Writer::end(bool goes_on) {
  impl_->end(goes_on);
}

}  // namespace lockstep::trace
