// Thread ranks that write traces, and what those hold afterwards.
#pragma once

#include <lockstep/record/observed_backend.h>
#include <lockstep/record/probes.h>
#include <lockstep/trace/reader.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../support/ddp_models.h"

namespace lockstep::test {

class RecordJob {
 public:
  explicit RecordJob(int world_size) : folder_("lockstep-record") {
    for (int rank = 0; rank < world_size; ++rank)
      writers_.push_back(std::make_shared<trace::Writer>(
          folder_.path(), trace::Participant{.rank = rank, .world_size = world_size}));
    options.world_size = world_size;
    options.decorate = [this](BackendPtr backend, const StorePtr&) {
      const int rank = backend->getRank();
      return record::observe(std::move(backend), writer(rank));
    };
  }

  std::shared_ptr<trace::Writer> writer(int rank) const {
    return writers_.at(static_cast<std::size_t>(rank));
  }
  // While the job runs too.
  trace::ParticipantTrace trace_of(int rank) const {
    return trace::read_file(folder_.path() / ("rank_" + std::to_string(rank) + ".trace"));
  }
  trace::Trace trace() const { return trace::read(folder_.path()); }
  // What the test's own code called: run_thread_ranks begins with a barrier, sequence 1.
  struct Call : trace::Collective {
    std::int64_t left_ns;  // 0 = still inside
  };
  std::vector<Call> collectives(int rank) const {
    std::vector<Call> found;
    const auto trace = trace_of(rank);
    for (const auto& at : trace.all<trace::Collective>()) found.push_back({*at.event, at.left_ns});
    if (found.empty() || found[0].op != "barrier" || found[0].sequence != 1) {
      ADD_FAILURE() << "no opening barrier";
      return {};
    }
    found.erase(found.begin());
    return found;
  }

  ThreadRanksOptions options;  // for run_thread_ranks: over the observed backend

 private:
  TemporaryFolder folder_;
  std::vector<std::shared_ptr<trace::Writer>> writers_;
};

// Something that a rank does to its replica once its gradients are reduced, before the update.
using Meddle = std::function<void(int rank, int step, torch::nn::Module& replica)>;

// What `steps` of training leave on rank 0: every loss, then the parameters. `probes` may be null.
struct Trained {
  std::vector<at::Tensor> values;
};

inline Trained train_ddp(
    const ThreadRanksOptions& options, int steps,
    const std::function<std::unique_ptr<record::Probes>(int rank)>& make,
    const Meddle& meddle = [](int, int, torch::nn::Module&) {}) {
  Trained trained;
  run_thread_ranks(options, [&](ProcessGroupPtr group) {
    const int rank = group->getRank();
    auto net = seeded(3, [] { return Mlp(12, 24, 4); });
    const auto probes = make(rank);
    probes->attach(*net);
    auto model = DistributedDataParallel(net, group);
    probes->engine("distributed_data_parallel");
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    probes->start();
    for (int step = 0; step < steps; ++step) {
      probes->samples("train", std::vector<std::int64_t>(8, rank));
      net->zero_grad();
      const auto each = model(inputs_of(rank, step, 12)).square().mean(1);
      const auto loss = each.mean();
      probes->loss(loss, each);
      loss.backward();
      probes->gradients_ready();
      meddle(rank, step, *net);
      optimizer.step();
      probes->updated(optimizer);
      if (rank == 0) trained.values.push_back(loss.detach().clone());
    }
    if (rank == 0)
      for (const auto& parameter : net->parameters())
        trained.values.push_back(parameter.detach().clone());
  });
  return trained;
}

}  // namespace lockstep::test
