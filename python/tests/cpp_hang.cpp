// A C++ job that hangs: rank 1 leaves out the collective that rank 0 waits in. One process a rank.
#include <lockstep/dist/process_group.h>
#include <torch/torch.h>

#include <chrono>
#include <iostream>
#include <thread>

int main() try {
  const auto group = lockstep::init_process_group();
  auto sum = torch::ones({4});
  lockstep::all_reduce(*group, sum);
  if (group->getRank() == 0)
    lockstep::broadcast(*group, sum);
  else
    std::this_thread::sleep_for(std::chrono::hours(1));
  return 0;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return 1;
}
