// Our side of the checkpoint benchmark; checkpoint.py starts it, tells it what to do and reads the times.
//
// usage: checkpoint MIB
// Holds MIB of float32 in tensors of 16 MiB. Reads commands from stdin and writes, for each, the
// nanoseconds it took: "save PATH" (synced), "save_unsynced PATH", "load PATH".
#include <lockstep/base/clock.h>
#include <lockstep/base/error.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/launch/guarded.h>
#include <torch/torch.h>

#include <cstdio>
#include <iostream>
#include <string>

namespace lockstep {
namespace {

constexpr std::int64_t kTensorMib = 16;

Value make_state(std::int64_t mib) {
  torch::manual_seed(0);
  Value::Dict state;
  for (std::int64_t i = 0; i * kTensorMib < mib; ++i)
    state["layers." + std::to_string(i) + ".weight"] =
        torch::rand({std::min(mib - i * kTensorMib, kTensorMib), 1024, 256});
  return state;
}

// The time until what was loaded is there; freeing it is not counted.
std::int64_t timed_load(const std::string& path) {
  const auto start = monotonic_ns();
  const auto loaded = load_checkpoint(path);
  const auto time = monotonic_ns() - start;
  if (loaded.value.as_dict().empty()) throw Error("loaded nothing from " + path);
  return static_cast<std::int64_t>(time);
}

std::int64_t timed_save(const std::string& path, const Value& state, bool sync) {
  const auto start = monotonic_ns();
  save_checkpoint(path, state, {.sync = sync});
  return static_cast<std::int64_t>(monotonic_ns() - start);
}

void serve(const Value& state) {
  std::string command, path;
  while (std::cin >> command >> path)
    std::cout << (command == "load" ? timed_load(path) : timed_save(path, state, command == "save"))
              << std::endl;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: checkpoint MIB\n");
    return lockstep::kUsage;
  }
  return lockstep::launch::guarded([&] {
    torch::set_num_threads(1);
    lockstep::serve(lockstep::make_state(std::stoll(argv[1])));
  });
}
