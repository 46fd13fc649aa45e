#include "meeting.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>

#include "device.h"

namespace pretended {

namespace {
constexpr int kMostRanks = 16;
constexpr std::size_t kMostFloats = 4096;
constexpr auto kBetweenLooks = std::chrono::microseconds(200);
static_assert(std::atomic<long>::is_always_lock_free, "it is shared by processes");
}  // namespace

// A new file is zero, and so are the numbers. A rank writes its own only.
struct Meeting::Member {
  std::atomic<long> there, connected;
  std::atomic<long> came;  // to this collective
  std::array<char, 256> place;
  // Of the last two collectives: a rank that is at the next has read all of the one before the last.
  std::array<std::size_t, 2> count;
  std::array<std::array<float, kMostFloats>, 2> values;
};

std::string Meeting::make() {
  static std::atomic<int> made{0};
  const auto name = "meeting_" + std::to_string(::getpid()) + "_" + std::to_string(++made);
  const int fd = ::open((folder() / name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0 || ::ftruncate(fd, kMostRanks * sizeof(Member)) != 0)
    refuse("cannot make " + (folder() / name).string() + ": " + std::strerror(errno));
  ::close(fd);
  return name;
}

Meeting::Meeting(const std::string& name, int rank, int size) : rank_(rank), size_(size) {
  if (size > kMostRanks) refuse("only " + std::to_string(kMostRanks) + " ranks are pretended");
  const int fd = ::open((folder() / name).c_str(), O_RDWR | O_CLOEXEC);
  if (fd >= 0)
    memory_ =
        ::mmap(nullptr, kMostRanks * sizeof(Member), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd < 0 || memory_ == MAP_FAILED)
    refuse("cannot map " + (folder() / name).string() + ": " + std::strerror(errno));
  ::close(fd);
}

Meeting::~Meeting() {
  ::munmap(memory_, kMostRanks * sizeof(Member));
}

Meeting::Member& Meeting::member(int rank) const {
  return static_cast<Member*>(memory_)[rank];
}

template <class Predicate>
bool Meeting::wait_for_all(Predicate predicate) const {
  for (int rank = 0; rank < size_; ++rank)
    while (!predicate(member(rank))) {
      if (given_up_) return false;
      std::this_thread::sleep_for(kBetweenLooks);
    }
  return !given_up_;
}

void Meeting::wait_until_given_up() const {
  while (!given_up_) std::this_thread::sleep_for(kBetweenLooks);
}

bool Meeting::join(const std::string& place) {
  place.copy(own().place.data(), own().place.size() - 1);
  own().there = 1;
  return wait_for_all([](const Member& each) { return each.there == 1; });
}

bool Meeting::has_same_place_twice() const {
  std::set<std::string> places;
  for (int rank = 0; rank < size_; ++rank) places.insert(member(rank).place.data());
  return places.size() < static_cast<std::size_t>(size_);
}

bool Meeting::connect() {
  own().connected = 1;
  return wait_for_all([](const Member& each) { return each.connected == 1; });
}

bool Meeting::sum(long number, const float* from, float* to, std::size_t count) {
  if (count > kMostFloats) refuse("only " + std::to_string(kMostFloats) + " floats are pretended");
  if (given_up_) return false;
  const auto slot = static_cast<std::size_t>(number % 2);
  std::copy_n(from, count, own().values[slot].begin());
  own().count[slot] = count;
  own().came = number;
  if (!wait_for_all([number](const Member& each) { return each.came >= number; })) return false;
  std::fill_n(to, count, 0.0F);
  for (int rank = 0; rank < size_; ++rank) {
    if (member(rank).count[slot] != count) refuse("ranks add tensors of different sizes");
    for (std::size_t i = 0; i < count; ++i) to[i] += member(rank).values[slot][i];
  }
  return true;
}

}  // namespace pretended
