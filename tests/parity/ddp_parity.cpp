// One rank of the DDP parity runs; ddp_parity.py is its twin, line for line where it matters.
//
// usage: ddp_parity OUT INIT RANK WORLD:CASE ...
//   OUT    folder for the results, wWORLD_CASE_rRANK
//   INIT   start of a file:// address, a case's own store is INIT + "wWORLD_CASE"; or env:// (one
//   group
//          for all cases; RANK is -1)
// Cases of a WORLD that has no such RANK are left out. A result is, for each tensor, a line "name
// bytes" and its bytes: the losses of all steps, the collectives entered until after the construction and
// after each step, the parameters, the buffers.
#include <ATen/CPUGeneratorImpl.h>
#include <lockstep/base/error.h>
#include <lockstep/launch/guarded.h>
#include <lockstep/train/comm_hooks.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/models.h>
#include <lockstep/train/watched.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <optional>

#include "write.h"

namespace lockstep {
namespace {

using parity::write;

constexpr std::int64_t kSamples = 512;  // a rank's
constexpr std::uint64_t kSeed = 1234;

// Each microbatch uses one of two branches; every fifth all ranks use the same one.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    trunk = register_module("trunk", torch::nn::Linear(784, 64));
    left = register_module("left", torch::nn::Linear(64, 10));
    right = register_module("right", torch::nn::Linear(64, 10));
  }
  torch::Tensor forward(const torch::Tensor& inputs, bool use_left) {
    const auto hidden = torch::relu(trunk->forward(inputs));
    return use_left ? left->forward(hidden) : right->forward(hidden);
  }
  torch::nn::Linear trunk{nullptr}, left{nullptr}, right{nullptr};
};
TORCH_MODULE(Branches);

bool uses_left(int microbatch, int rank) {
  return microbatch % 5 != 4 && (microbatch + rank) % 2 == 0;
}

struct Case {
  std::string name;
  DdpOptions options;
  std::int64_t batch = 32;
  int steps = 200;
  int accumulated = 1;                   // microbatches an update, all but the last in no_sync
  bool armed = false;                    // no_sync begins after forward: too late
  std::optional<JoinOptions> join = {};  // two epochs of unequal numbers of steps
  double momentum = 0.9;
  bool bf16_hook = false;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"mlp", {}},
      {"mlp_view", {.gradient_as_bucket_view = true}},
      {"mlp_buckets", {.bucket_cap_mb = 0.01}, 32, 40},
      {"mlp_static", {.static_graph = true}, 32, 40},
      {"conv", {}, 4},
      {"conv_view", {.gradient_as_bucket_view = true}, 4, 40},
      {"conv_no_buffers", {.broadcast_buffers = false}, 4},
      {"unused", {.find_unused_parameters = true}},
      {"unused_view", {.find_unused_parameters = true, .gradient_as_bucket_view = true}},
      {"unused_buckets", {.bucket_cap_mb = 0.01, .find_unused_parameters = true}, 32, 40},
      {"mlp_accumulated", {.bucket_cap_mb = 0.01}, 8, 40, 4},
      {"mlp_view_accumulated", {.gradient_as_bucket_view = true}, 8, 40, 4},
      {"mlp_armed", {}, 8, 40, 4, true},
      {"conv_accumulated", {}, 4, 40, 4},
      {"conv_armed", {}, 4, 40, 4, true},
      {"unused_accumulated", {.find_unused_parameters = true}, 8, 40, 3},
      {"mlp_join", {.bucket_cap_mb = 0.01}, 32, 40, 1, false, JoinOptions{}},
      {"mlp_join_shrinking",
       {.gradient_as_bucket_view = true},
       32,
       40,
       1,
       false,
       JoinOptions{.divide_by_initial_world_size = false}},
      {"conv_join", {}, 4, 40, 1, false, JoinOptions{}},
      {"conv_join_accumulated", {}, 4, 40, 3, false, JoinOptions{}},
      // Without momentum: Python's Join gives unused parameters a gradient of zeros, see shadow_reduction.
      {"unused_join",
       {.bucket_cap_mb = 0.01, .find_unused_parameters = true},
       32,
       40,
       1,
       false,
       JoinOptions{},
       0},
      {"mlp_bf16_hook", {.bucket_cap_mb = 0.01}, 32, 40, 1, false, {}, 0.9, /*bf16_hook=*/true},
      {"conv_bf16_hook", {.gradient_as_bucket_view = true}, 4, 40, 1, false, {}, 0.9, true},
  };
  return all;
}

// Steps of each epoch. Inside join() the last rank has none in the first, and rank 0 the fewest in the last.
std::vector<int> epochs_of(const Case& the_case, int rank, int world_size) {
  if (!the_case.join) return {the_case.steps};
  const int half = the_case.steps / 2;
  return {rank + 1 == world_size ? 0 : half - 3 * rank, half - 3 * (world_size - 1 - rank)};
}

// forward(model, inputs, number of the microbatch) gives the logits.
template <class Holder, class Forward>
void train(const Case& the_case, Holder net, const ProcessGroupPtr& group, const std::string& path,
           Forward forward) {
  const auto entered = [backend = group->getDefaultBackend()] {
    return backend->getSequenceNumberForGroup();
  };
  const auto before = entered();
  auto model = DistributedDataParallel(net, group, the_case.options);
  if (the_case.bf16_hook) model.engine().register_comm_hook(bf16_compress_hook(group));
  auto generator = at::make_generator<at::CPUGeneratorImpl>(
      kSeed + 1 + static_cast<std::uint64_t>(group->getRank()));
  const auto inputs = torch::randn({kSamples, 784}, generator);
  const auto targets = torch::randint(0, 10, {kSamples}, generator, torch::kInt64);
  Watched<torch::optim::SGD> optimizer(model.parameters(),
                                       torch::optim::SGDOptions(0.01).momentum(the_case.momentum));
  std::vector<float> losses, collectives{static_cast<float>(entered() - before)};
  const auto train_step = [&](int step) {
    net->zero_grad();
    at::Tensor loss;
    for (int part = 0; part < the_case.accumulated; ++part) {
      const int microbatch = step * the_case.accumulated + part;
      const std::int64_t first = microbatch * the_case.batch % kSamples;
      const auto batch = torch::indexing::Slice(first, first + the_case.batch);
      const bool quiet = part + 1 < the_case.accumulated;
      std::optional<NoSync> no_sync;
      if (quiet && !the_case.armed) no_sync.emplace(model.engine());
      const auto outputs = forward(model, inputs.index({batch}), microbatch);
      if (quiet && the_case.armed) no_sync.emplace(model.engine());
      loss = torch::nn::functional::cross_entropy(outputs, targets.index({batch})) /
             the_case.accumulated;
      loss.backward();
    }
    optimizer.step();
    losses.push_back(loss.template item<float>());
    collectives.push_back(static_cast<float>(entered() - before));
  };
  int step = 0;
  for (const int count : epochs_of(the_case, group->getRank(), group->getSize())) {
    const auto epoch = [&] {
      for (int i = 0; i < count; ++i) train_step(step++);
    };
    if (the_case.join)
      join({model.engine()}, epoch, *the_case.join);
    else
      epoch();
    collectives.push_back(static_cast<float>(entered() - before));
  }
  std::ofstream out(path, std::ios::binary);
  write(out, "losses", torch::tensor(losses));
  write(out, "collectives", torch::tensor(collectives));
  for (const auto& item : net->named_parameters()) write(out, item.key(), item.value());
  for (const auto& item : net->named_buffers()) write(out, item.key(), item.value());
  if (!out.flush()) throw Error("cannot write " + path);
}

void run_case(const Case& the_case, const ProcessGroupPtr& group, const std::string& path) {
  torch::manual_seed(kSeed +
                     static_cast<std::uint64_t>(group->getRank()));  // rank 0's model counts
  const auto plain = [](auto& model, const at::Tensor& inputs, int) { return model(inputs); };
  if (the_case.name.starts_with("mlp")) {
    train(the_case, Mlp(784, 256, 10), group, path, plain);
  } else if (the_case.name.starts_with("conv")) {
    train(the_case, ConvNet(10), group, path, plain);
  } else {
    train(the_case, Branches(), group, path,
          [&](auto& model, const at::Tensor& inputs, int microbatch) {
            return model(inputs, uses_left(microbatch, group->getRank()));
          });
  }
}

const Case& find_case(const std::string& name) {
  for (const auto& the_case : cases())
    if (the_case.name == name) return the_case;
  throw UsageError("no case is named " + name);
}

void run(const std::string& out, const std::string& init, int rank,
         const std::vector<std::string>& specs) {
  torch::set_num_threads(1);
  InitOptions options;
  options.timeout = std::chrono::seconds(60);
  const bool one_group = init == "env://";
  ProcessGroupPtr group = one_group ? init_process_group(options) : nullptr;
  for (const auto& spec : specs) {
    const auto colon = spec.find(':');
    const int world_size = std::stoi(spec.substr(0, colon));
    const auto& the_case = find_case(spec.substr(colon + 1));
    const auto name = "w" + std::to_string(world_size) + "_" + the_case.name;
    if (rank >= world_size) continue;
    if (!one_group) {
      options.init_method = init + name;
      options.rank = options.local_rank = rank;
      options.world_size = world_size;
      group = init_process_group(options);
    }
    run_case(the_case, group, out + "/" + name + "_r" + std::to_string(group->getRank()));
    if (!one_group) destroy_process_group(group);
  }
  destroy_process_group(group);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: ddp_parity OUT INIT RANK WORLD:CASE ...\n");
    return lockstep::kUsage;
  }
  return lockstep::launch::guarded([&] {
    lockstep::run(argv[1], argv[2], std::stoi(argv[3]), {argv + 4, argv + argc});
  });
}
