#include <fcntl.h>
#include <lockstep/base/clock.h>
#include <lockstep/base/error.h>
#include <lockstep/trace/codec.h>
#include <lockstep/trace/format.h>
#include <lockstep/trace/writer.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <mutex>
#include <type_traits>

namespace lockstep::trace {
namespace {

constexpr std::size_t kGrowth = std::size_t{1} << 20;    // 1 MiB
constexpr std::size_t kReserved = std::size_t{1} << 32;  // address space; the file grows inside it

constexpr std::size_t kCollective = 18;
static_assert(std::is_same_v<std::variant_alternative_t<kCollective, Payload>, Collective>);

std::int64_t unix_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// What the reader would refuse is not written.
const Participant& checked(const Participant& participant) {
  if (participant.rank < 0 || participant.rank >= participant.world_size)
    throw UsageError("a trace of rank " + std::to_string(participant.rank) + " of " +
                     std::to_string(participant.world_size) +
                     ": ranks go from 0 to the world size minus 1");
  if (participant.kind.size() >= sizeof FileHeader::kind)
    throw UsageError("a participant's kind has at most 15 bytes: \"" + participant.kind + "\"");
  return participant;
}

}  // namespace

class Writer::Impl {
 public:
  Impl(const std::filesystem::path& folder, const Participant& participant)
      : participant_(checked(participant)),
        path_(folder / ("rank_" + std::to_string(participant.rank) + ".trace")) {
    // Made under another name and linked when its head is complete: whoever finds a trace, finds a
    // whole one.
    const auto draft = path_.string() + ".new." + std::to_string(getpid());
    fd_ = open(draft.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd_ < 0) fail_to_create();
    try {
      reserve(kHeaderSize);
      void* map =
          mmap(nullptr, kReserved, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
      if (map == MAP_FAILED) fail("cannot map");
      base_ = static_cast<std::uint8_t*>(map);
      write_header();
      if (link(draft.c_str(), path_.c_str()) != 0) fail_to_create();
    } catch (...) {
      if (base_ != nullptr) munmap(base_, kReserved);
      close(fd_);
      unlink(draft.c_str());
      throw;
    }
    unlink(draft.c_str());
  }

  ~Impl() {
    header().closed.store(1, std::memory_order_release);
    const auto length = header().length.load();
    munmap(base_, kReserved);
    // What is beyond the last record is zeros, so a file that keeps them is read just as well.
    [[maybe_unused]] const int cut = ftruncate(fd_, static_cast<off_t>(length));
    close(fd_);
  }

  const Participant& participant() const { return participant_; }
  void set_step(std::int64_t step) { step_.store(step, std::memory_order_relaxed); }
  std::int64_t step() const { return step_.load(std::memory_order_relaxed); }

  void append(const Payload& payload) {
    const std::lock_guard lock(mutex_);
    std::visit([&](const auto& event) { append_locked(event, payload.index()); }, payload);
  }

  std::uint64_t enter(const Collective& collective) {
    const std::lock_guard lock(mutex_);
    const auto offset = append_locked(collective, kCollective);
    header().entered.fetch_add(1, std::memory_order_relaxed);
    for (auto& place : header().in_flight) {
      std::uint64_t free = 0;
      if (place.compare_exchange_strong(free, offset, std::memory_order_release)) break;
    }
    return offset;
  }

  void leave(std::uint64_t offset, bool failed) {
    auto* left = reinterpret_cast<std::int64_t*>(base_ + offset + kLeftOffset);
    auto* failure = reinterpret_cast<std::int64_t*>(base_ + offset + kFailedOffset);
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
  FileHeader& header() { return *reinterpret_cast<FileHeader*>(base_); }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(what + " the trace " + path_.string() + ": " + std::strerror(errno));
  }

  [[noreturn]] void fail_to_create() const {
    if (errno == EEXIST)
      throw Error("there is a trace already: " + path_.string() +
                  "; give every run a folder of its own");
    fail("cannot create");
  }

  // Makes the file hold `needed` bytes, with blocks on disk behind them: a full disk is found here,
  // and not as a SIGBUS in the middle of a store.
  void reserve(std::size_t needed) {
    if (needed <= capacity_) return;
    if (needed > kReserved)
      throw Error("the trace " + path_.string() + " is full: it holds at most 4 GiB");
    const std::size_t wanted = (needed + kGrowth - 1) / kGrowth * kGrowth;
    int error = EINTR;  // which a signal may give on a tmpfs
    while (error == EINTR)
      error = posix_fallocate(fd_, static_cast<off_t>(capacity_),
                              static_cast<off_t>(wanted - capacity_));
    if (error != 0) {
      errno = error;
      fail("cannot grow");
    }
    capacity_ = wanted;
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
    head.started_unix_ns = unix_ns();
    head.length.store(kHeaderSize, std::memory_order_release);
  }

  template <class T>
  std::uint64_t append_locked(const T& event, std::size_t kind) {
    buffer_.assign(sizeof(RecordHeader), 0);
    Encoder encoder(buffer_);
    // visit() serves reading and writing and so takes a non-const event; an Encoder changes
    // nothing.
    const_cast<T&>(event).visit(encoder);
    buffer_.resize((buffer_.size() + 7) / 8 * 8, 0);
    const RecordHeader record{static_cast<std::uint32_t>(buffer_.size()),
                              static_cast<std::uint16_t>(kind), 0, monotonic_ns(), step()};
    std::memcpy(buffer_.data(), &record, sizeof record);
    const auto offset = header().length.load(std::memory_order_relaxed);
    reserve(offset + buffer_.size());
    std::memcpy(base_ + offset, buffer_.data(), buffer_.size());
    header().length.store(offset + buffer_.size(), std::memory_order_release);
    return offset;
  }

  Participant participant_;
  std::filesystem::path path_;
  int fd_ = -1;
  std::uint8_t* base_ = nullptr;
  std::atomic<std::int64_t> step_{-1};
  std::mutex mutex_;  // of everything below
  std::size_t capacity_ = 0;
  std::vector<std::uint8_t>
      buffer_;  // of the record being written; kept, so that it seldom allocates
};

Writer::Writer(const std::filesystem::path& folder, const Participant& participant)
    : impl_(std::make_unique<Impl>(folder, participant)) {}
Writer::~Writer() = default;

const Participant& Writer::participant() const {
  return impl_->participant();
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

}  // namespace lockstep::trace
