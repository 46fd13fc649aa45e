// Ranks as threads of one process: a world without a launcher, for tests of what ranks do together.
#pragma once

#include <lockstep/base/file.h>
#include <lockstep/dist/process_group.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace lockstep::test {

// torch 2.11's flight recorder keeps a map that its groups write without a lock: with several
// groups in one process, each in its own thread, it is corrupted sooner or later. It reads its size
// once, at the first collective, so it is switched off before main. Processes with one rank each
// have no such trouble.
inline const int kFlightRecorderOff = ::setenv("TORCH_FR_BUFFER_SIZE", "0", 1);

struct ThreadRanksOptions {
  int world_size = 2;
  std::chrono::milliseconds timeout{20'000};  // of the rendezvous and of every operation
  std::function<BackendPtr(BackendPtr, const StorePtr&)> decorate = {};
};

// Runs body(group) once a rank, each in its own thread over a Gloo group, and gives back what each
// threw (null where nothing). A rank that throws leaves its peers to their timeouts.
inline std::vector<std::exception_ptr> try_thread_ranks(
    const ThreadRanksOptions& options, const std::function<void(ProcessGroupPtr)>& body) {
  torch::set_num_threads(1);
  const TemporaryFolder folder("lockstep-ranks");
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(options.world_size));
  const auto run = [&](int rank) {
    try {
      InitOptions init;
      init.init_method = "file://" + (folder.path() / "store").string();
      init.rank = rank;
      init.local_rank = rank;
      init.world_size = options.world_size;
      init.timeout = options.timeout;
      init.decorate = options.decorate;
      auto group = init_process_group(init);
      barrier(*group);  // a rank that left before its peers are connected would make them fail
      body(group);
      destroy_process_group(group);
    } catch (...) {
      thrown[static_cast<std::size_t>(rank)] = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.world_size; ++rank) threads.emplace_back(run, rank);
  for (auto& thread : threads) thread.join();
  return thrown;
}

// The same; rethrows what the lowest rank that failed threw.
inline void run_thread_ranks(const ThreadRanksOptions& options,
                             const std::function<void(ProcessGroupPtr)>& body) {
  for (const auto& error : try_thread_ranks(options, body))
    if (error) std::rethrow_exception(error);
}

inline void run_thread_ranks(int world_size, const std::function<void(ProcessGroupPtr)>& body) {
  run_thread_ranks(ThreadRanksOptions{.world_size = world_size}, body);
}

inline std::mutex& generator_mutex() {
  static std::mutex mutex;
  return mutex;
}

// Calls make() with the global generator, which all threads share, freshly seeded.
template <class Make>
auto seeded(std::uint64_t seed, Make make) {
  const std::lock_guard<std::mutex> lock(generator_mutex());
  torch::manual_seed(seed);
  return make();
}

}  // namespace lockstep::test
