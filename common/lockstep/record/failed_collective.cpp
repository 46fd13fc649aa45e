#include <lockstep/base/clock.h>
#include <lockstep/record/failed_collective.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace lockstep::record {
namespace {

constexpr std::size_t kKept = 64;
constexpr std::int64_t kPatience = 250'000'000;

std::atomic<std::int64_t> under_way{0};

struct Failures {
  struct Failure {
    FailedCollective what;
    std::exception_ptr error;
  };
  std::mutex mutex;
  std::deque<Failure> latest;  // oldest first
};

// Never destroyed: a backend's thread may note a failure while the process ends.
Failures& failures() {
  static auto* all = new Failures;
  return *all;
}

std::optional<FailedCollective> noted(const std::exception_ptr& error) {
  const std::lock_guard lock(failures().mutex);
  for (const auto& failure : failures().latest)
    if (failure.error == error) return failure.what;
  return std::nullopt;
}

}  // namespace

std::optional<FailedCollective> failed_collective_of(const std::exception_ptr& error) {
  if (!error) return std::nullopt;
  for (const auto until = monotonic_ns() + kPatience;;) {
    const bool last_look = under_way == 0 || monotonic_ns() >= until;
    if (auto failed = noted(error); failed || last_look) return failed;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::optional<FailedCollective> last_failed_collective() {
  const std::lock_guard lock(failures().mutex);
  if (failures().latest.empty()) return std::nullopt;
  return failures().latest.back().what;
}

void note_entered() {
  ++under_way;
}

void note_done(std::size_t operations) {
  under_way -= static_cast<std::int64_t>(operations);
}

void note_failed(std::size_t operations, FailedCollective failed, std::exception_ptr error) {
  std::exception_ptr dropped;  // destroyed without the lock, whatever its destructor does
  {
    const std::lock_guard lock(failures().mutex);
    auto& latest = failures().latest;
    if (latest.size() == kKept) {
      dropped = std::move(latest.front().error);
      latest.pop_front();
    }
    latest.push_back({std::move(failed), std::move(error)});
  }
  note_done(operations);
}

}  // namespace lockstep::record
