#include "device.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

namespace pretended {
namespace {

// Never destroyed: a stream's thread may still run when the process ends.
struct Device {
  std::mutex mutex;
  std::set<std::shared_ptr<Queue>> queues;
};
Device& device() {
  static auto& only = *new Device;
  return only;
}

std::string rank_here() {
  const char* rank = std::getenv("RANK");
  return rank != nullptr ? rank : "none";
}

std::filesystem::path file_of_rank(const std::string& what) {
  return folder() / ("rank_" + rank_here() + "." + what);
}

void tell_what_was_used() {
  const auto& all = counts();
  if (!all.used) return;
  std::ofstream(file_of_rank("used"))
      << "kernels " << all.kernels << "\ncollectives " << all.collectives << "\nstreams "
      << all.streams << "\nevents " << all.events << "\nbuffers " << all.buffers
      << "\ncommunicators " << all.communicators << "\n";
}

// A lesson's rank ends by std::quick_exit, which runs no destructors (base/end_process.h); other programs return from main.
__attribute__((constructor)) void tell_at_the_end() {
  std::at_quick_exit(tell_what_was_used);
  std::atexit(tell_what_was_used);
}

}  // namespace

void refuse(const std::string& what) {
  std::fprintf(stderr, "pretended GPU: %s\n", what.c_str());
  if (std::getenv("LOCKSTEP_PRETENDED_GPU_FOLDER") != nullptr)
    std::ofstream(file_of_rank("refused")) << what << "\n";
  std::abort();
}

std::filesystem::path folder() {
  const char* text = std::getenv("LOCKSTEP_PRETENDED_GPU_FOLDER");
  if (text == nullptr) refuse("LOCKSTEP_PRETENDED_GPU_FOLDER is not set");
  return text;
}

bool is_to_fail(const std::string& call) {
  static std::mutex mutex;
  static auto& asked = *new std::map<std::string, int>;
  const char* text = std::getenv("LOCKSTEP_PRETENDED_GPU_FAILS");
  if (text == nullptr) return false;
  std::istringstream words(text);
  std::string rank, failing;
  int number = 0;
  words >> rank >> failing >> number;
  const std::lock_guard lock(mutex);
  return rank == rank_here() && failing == call && ++asked[call] == number;
}

Counts& counts() {
  static auto& only = *new Counts;
  return only;
}

void Mark::set() {
  const std::lock_guard lock(mutex_);
  set_ = true;
  changed_.notify_all();
}

void Mark::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return set_; });
}

bool Mark::is_set() {
  const std::lock_guard lock(mutex_);
  return set_;
}

std::shared_ptr<Queue> Queue::open() {
  auto queue = std::make_shared<Queue>();
  const std::lock_guard lock(device().mutex);
  device().queues.insert(queue);
  std::thread([queue] { queue->work_off(); }).detach();
  return queue;
}

void Queue::give(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  work_.push_back(std::move(work));
  given_.notify_one();
}

MarkPtr Queue::mark() {
  auto mark = std::make_shared<Mark>();
  give([mark] { mark->set(); });
  return mark;
}

void Queue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  given_.notify_one();
}

// Whoever waits for the device may give marks to a stream that is closed, as long as it is among the device's.
bool Queue::has_ended() {
  const std::scoped_lock lock(device().mutex, mutex_);
  if (!work_.empty()) return false;
  std::erase_if(device().queues, [this](const auto& queue) { return queue.get() == this; });
  return true;
}

void Queue::work_off() {
  for (;;) {
    std::function<void()> next;
    {
      std::unique_lock lock(mutex_);
      given_.wait(lock, [this] { return closed_ || !work_.empty(); });
      if (!work_.empty()) {
        next = std::move(work_.front());
        work_.pop_front();
      }
    }
    if (next)
      next();
    else if (has_ended())
      return;
  }
}

void wait_for_device() {
  std::vector<MarkPtr> marks;
  {
    const std::lock_guard lock(device().mutex);
    for (const auto& queue : device().queues) marks.push_back(queue->mark());
  }
  for (const auto& mark : marks) mark->wait();
}

}  // namespace pretended
