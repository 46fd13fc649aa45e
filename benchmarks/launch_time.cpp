// A job as short as can be, for launch_time.py: the ranks meet, reduce one number, and leave. Rank 0 prints
// when the reduction was over, in nanoseconds of the monotonic clock.
//
//   launch_time WORLD_SIZE     starts that many ranks; or, under torchrun, is a rank
#include <lockstep/base/clock.h>
#include <lockstep/base/error.h>
#include <lockstep/base/exit_code.h>
#include <lockstep/base/file.h>
#include <lockstep/dist/process_group.h>
#include <lockstep/launch/launch.h>
#include <torch/torch.h>

#include <iostream>
#include <string>

namespace {

using namespace lockstep;

int run_rank(int rank) {
  auto group = init_process_group();
  auto sum = torch::ones({1});
  all_reduce(*group, sum);
  const auto reduced = monotonic_ns();
  if (sum.item<float>() != static_cast<float>(group->getSize())) throw Error("the sum is wrong");
  barrier(*group);
  destroy_process_group(group);
  if (rank == 0) std::cout << reduced << std::endl;
  return 0;
}

int run_launcher(const std::string& program, int world_size) {
  const TemporaryFolder folder("lockstep-launch-time");
  launch::LaunchOptions job;
  job.command = {program, std::to_string(world_size)};
  job.world_size = world_size;
  job.folder = folder.path();
  const auto result = launch::launch(job);
  if (!result.completed()) {
    std::cerr << result.summary() << "\n";
    return 1;
  }
  std::cout << read_file(folder.path() / "rank_0.out");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (const auto place = launch::placement_from_environment()) return run_rank(place->rank);
    if (argc != 2) throw UsageError("usage: launch_time WORLD_SIZE");
    return run_launcher(argv[0], std::stoi(argv[1]));
  } catch (const std::exception& error) {
    launch::report_error(error);
    std::cerr << "error: " << error.what() << "\n";
    return kCouldNotRun;
  }
}
