// Prints what lockstep::gpu says of this machine, for tests that put a driver of their own before it.
#include <lockstep/gpu/driver.h>
#include <lockstep/gpu/usage.h>

#include <iostream>

int main() {
  const auto driver = lockstep::gpu::ask_driver();
  std::cout << "missing " << driver.missing << "\ncuda " << driver.cuda_version << "\n";
  for (const auto& gpu : driver.gpus)
    std::cout << "gpu " << gpu.name << " | " << gpu.uuid << " | " << gpu.bytes << " | " << gpu.major
              << "." << gpu.minor << "\n";
  const auto usage = lockstep::gpu::ask_usage();
  if (!usage) std::cout << "no nvml\n";
  for (const auto& gpu : usage.value_or(std::vector<lockstep::gpu::Usage>{})) {
    std::cout << "usage " << gpu.uuid << " " << gpu.used_bytes << " of " << gpu.total_bytes << ":";
    for (const auto& process : gpu.processes)
      std::cout << " " << process.pid << "="
                << (process.bytes ? std::to_string(*process.bytes) : "unknown");
    std::cout << "\n";
  }
}
