// One rank of the parity runs of collectives with a gradient; functional_parity.py is its twin.
//
// usage: functional_parity OUT INIT RANK WORLD ...
//   OUT    folder for the results, wWORLD_rRANK
//   INIT   start of a file:// address; a world's own store is INIT + WORLD
// Worlds that have no such RANK are left out. A result is, for each tensor, a line "name bytes" and its
// bytes.
#include <ATen/CPUGeneratorImpl.h>
#include <lockstep/base/error.h>
#include <lockstep/launch/guarded.h>
#include <lockstep/train/functional.h>

#include <cstdio>
#include <fstream>

#include "write.h"

namespace lockstep {
namespace {

using parity::write;

constexpr int kSteps = 20;
constexpr std::uint64_t kSeed = 77;

void run_world(const ProcessGroupPtr& group, const std::string& path) {
  const int rank = group->getRank();
  auto own = at::make_generator<at::CPUGeneratorImpl>(kSeed + 1 + static_cast<std::uint64_t>(rank));
  std::vector<float> losses;
  std::vector<at::Tensor> gathered, reduced;
  for (int step = 0; step < kSteps; ++step) {
    const auto x = torch::randn({5, 7}, own).requires_grad_();
    const auto everyone = torch::cat(functional::all_gather(group, x));
    // One after the other, as in Python: the order in which a graph is made decides in which order
    // gradients are added, and C++ leaves open which operand of a sum comes first.
    const auto first = (torch::tanh(everyone) * (rank + 1)).sum();
    const auto second = everyone.mm(everyone.t()).pow(2).mean();
    const auto loss = first + second;
    loss.backward();
    gathered.push_back(x.grad());
    const auto y = torch::randn({5, 7}, own).requires_grad_();
    const auto total = functional::all_reduce(group, y.pow(3));
    (torch::tanh(total) * (rank + 1)).sum().backward();
    reduced.push_back(y.grad());
    losses.push_back(loss.item<float>());
  }
  std::ofstream out(path, std::ios::binary);
  write(out, "losses", torch::tensor(losses));
  write(out, "gathered", torch::stack(gathered));
  write(out, "reduced", torch::stack(reduced));
  if (!out.flush()) throw Error("cannot write " + path);
}

void run(const std::string& out, const std::string& init, int rank,
         const std::vector<std::string>& worlds) {
  torch::set_num_threads(1);
  for (const auto& world : worlds) {
    InitOptions options;
    options.world_size = std::stoi(world);
    if (rank >= options.world_size) continue;
    options.init_method = init + world;
    options.rank = options.local_rank = rank;
    auto group = init_process_group(options);
    run_world(group, out + "/w" + world + "_r" + std::to_string(rank));
    destroy_process_group(group);
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: functional_parity OUT INIT RANK WORLD ...\n");
    return lockstep::kUsage;
  }
  return lockstep::launch::guarded([&] {
    lockstep::run(argv[1], argv[2], std::stoi(argv[3]), {argv + 4, argv + argc});
  });
}
