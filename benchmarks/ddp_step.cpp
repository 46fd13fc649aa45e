// One rank of the step benchmarks. ddp_step.py and data_parallel_time.py start the ranks, tell them when to run and
// read the times.
//
// usage: ddp_step ENGINE HIDDEN STORE RANK WORLD
//   ENGINE  ddp: DistributedDataParallel; flat: backward, then one all-reduce of all gradients, by hand;
//           data_parallel: this process alone, with WORLD logical devices and as many batches
//   HIDDEN  the model is Mlp(784, HIDDEN, 10); batch 32 a rank, SGD with momentum 0.9, one thread
// Reads "N\n" from stdin, trains N steps between two barriers, and writes the nanoseconds between them.
//
// usage: ddp_step job HIDDEN WORLD STEPS
// A whole job of ddp, from its launch to its end. Writes what each part of it took on rank 0, in nanoseconds: until the
// rank runs, until the ranks have met, until model and engine are built, the first step, the others, the end.
#include <lockstep/base/clock.h>
#include <lockstep/base/end_process.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/launch/guarded.h>
#include <lockstep/train/data_parallel.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/models.h>

#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <vector>

namespace lockstep {
namespace {

constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kBatches = 16;

// What a program does that has no DDP: sums all gradients in one piece after the backward pass.
void flat_all_reduce(c10d::ProcessGroup& group, const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> pieces;
  for (const auto& parameter : parameters) pieces.push_back(parameter.grad().flatten());
  at::Tensor flat = torch::cat(pieces);
  all_reduce(group, flat);
  flat.div_(group.getSize());
  std::int64_t first = 0;
  for (const auto& parameter : parameters) {
    const auto size = parameter.numel();
    parameter.mutable_grad().copy_(flat.narrow(0, first, size).view_as(parameter));
    first += size;
  }
}

// torch.nn.DataParallel's four steps: scatter the batch, copy the model to each device, run the copies in
// threads, add their gradients up on the first.
void data_parallel(const Mlp& net, const at::Tensor& inputs, const at::Tensor& targets,
                   const std::vector<c10::Device>& devices) {
  const auto replicas = replicate(net.ptr(), devices);
  const auto parts = scatter(inputs, devices), wanted = scatter(targets, devices);
  parallel_apply(parts.size(), [&](std::size_t i) {
    const auto outputs = replicas[i]->as<MlpImpl>()->forward(parts[i]);
    torch::nn::functional::cross_entropy(outputs, wanted[i]).backward();
  });
  reduce_gradients(replicas, std::vector<double>(parts.size(), 1.0 / parts.size()));
}

void serve(c10d::ProcessGroup& group, const std::function<void(int step)>& train_step) {
  int done = 0;
  for (int steps = 0; std::cin >> steps;) {
    barrier(group);
    const auto start = monotonic_ns();
    for (int step = 0; step < steps; ++step) train_step(done++);
    barrier(group);
    std::cout << monotonic_ns() - start << std::endl;
  }
}

// When each part of a job ended, on the clock that processes share.
using Marks = std::vector<std::int64_t>;

void train(Marks& marks, int steps, const std::function<void(int step)>& train_step) {
  marks.push_back(monotonic_ns());
  train_step(0);
  marks.push_back(monotonic_ns());
  for (int step = 1; step < steps; ++step) train_step(step);
  marks.push_back(monotonic_ns());
}

// With `steps` it trains that many, and marks when; without, it serves.
void run(const std::string& engine, std::int64_t hidden, InitOptions options, int steps = 0,
         Marks marks = {}) {
  torch::set_num_threads(1);
  const std::vector<c10::Device> devices(options.world_size, at::kCPU);
  std::int64_t batch_size = kBatch;
  if (engine == "data_parallel") {
    batch_size *= options.world_size;
    options.world_size = 1;
  }
  auto group = init_process_group(options);
  marks.push_back(monotonic_ns());
  torch::manual_seed(1);
  Mlp net(784, hidden, 10);
  torch::manual_seed(static_cast<std::uint64_t>(2 + group->getRank()));
  const auto inputs = torch::randn({kBatches, batch_size, 784});
  const auto targets = torch::randint(0, 10, {kBatches, batch_size}, torch::kInt64);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  const auto parameters = net->parameters();

  // `forward` is the only other difference between the engines.
  const auto train_step = [&](int step, const auto& forward, bool flat) {
    optimizer.zero_grad();
    const auto batch = step % kBatches;
    torch::nn::functional::cross_entropy(forward(inputs[batch]), targets[batch]).backward();
    if (flat) flat_all_reduce(*group, parameters);
    optimizer.step();
  };
  if (engine == "ddp") {
    auto model = DistributedDataParallel(net, group);
    const auto ddp_step = [&](int step) {
      train_step(
          step, [&](const at::Tensor& x) { return model(x); }, false);
    };
    if (steps > 0)
      train(marks, steps, ddp_step);
    else
      serve(*group, ddp_step);
  } else if (engine == "flat") {
    serve(*group, [&](int step) {
      train_step(
          step, [&](const at::Tensor& x) { return net->forward(x); }, true);
    });
  } else if (engine == "data_parallel") {
    serve(*group, [&](int step) {
      optimizer.zero_grad();
      data_parallel(net, inputs[step % kBatches], targets[step % kBatches], devices);
      optimizer.step();
    });
  } else {
    throw UsageError("the engine must be ddp, flat or data_parallel, and is \"" + engine + "\"");
  }
  destroy_process_group(group);
  for (const auto mark : marks) std::cout << mark << "\n";
}

// A rank of a whole job, in a fork of its launcher.
int run_rank(std::int64_t hidden, int steps) {
  return launch::guarded([&] {
    const Marks began{monotonic_ns()};
    InitOptions options;
    options.world_size = launch::placement_from_environment().value().world_size;
    run("ddp", hidden, options, steps, began);
  });
}

void run_job(std::int64_t hidden, int world_size, int steps) {
  const TemporaryFolder folder("lockstep-ddp-step");
  Marks marks{monotonic_ns()};
  const auto result = launch::launch({.command = {"/proc/self/exe"},
                                      .go_on = [&] { return run_rank(hidden, steps); },
                                      .world_size = world_size,
                                      .folder = folder.path()});
  const auto end = monotonic_ns();
  if (!result.completed()) throw Error(result.summary());
  std::istringstream told(read_file(folder.path() / "rank_0.out"));
  for (std::int64_t mark = 0; told >> mark;) marks.push_back(mark);
  marks.push_back(end);
  for (std::size_t i = 1; i < marks.size(); ++i) std::cout << marks[i] - marks[i - 1] << "\n";
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "job")
    lockstep::end_process(lockstep::launch::guarded(
        [&] { lockstep::run_job(std::stoll(argv[2]), std::stoi(argv[3]), std::stoi(argv[4])); }));
  if (argc != 6) {
    std::fprintf(stderr,
                 "usage: ddp_step ddp|flat|data_parallel HIDDEN STORE RANK WORLD\n"
                 "       ddp_step job HIDDEN WORLD STEPS\n");
    return lockstep::kUsage;
  }
  return lockstep::launch::guarded([&] {
    lockstep::InitOptions options;
    options.init_method = std::string("file://") + argv[3];
    options.rank = options.local_rank = std::stoi(argv[4]);
    options.world_size = std::stoi(argv[5]);
    lockstep::run(argv[1], std::stoll(argv[2]), options);
  });
}
