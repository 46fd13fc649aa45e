// The steps of a training program, each of which a mutation may replace by another.
#pragma once

#include <lockstep/record/decorated_backend.h>
#include <lockstep/record/probes.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>

#include <functional>
#include <memory>
#include <optional>

#include "program.h"

namespace lockstep::mutants {

using Ids = std::vector<std::int64_t>;
using record::Tensors;
using record::WorkPtr;

// Whoever is set here gets the call, and what would be done about it. Filled in by a mutation.
struct Tampering {
  using AllReduce = std::function<WorkPtr(Tensors&, const c10d::AllreduceOptions&)>;
  using Broadcast = std::function<WorkPtr(Tensors&, const c10d::BroadcastOptions&)>;
  std::function<WorkPtr(Tensors&, c10d::AllreduceOptions, const AllReduce&)> allreduce;
  std::function<WorkPtr(Tensors&, c10d::BroadcastOptions, const Broadcast&)> broadcast;
};

// Between a program and its backend: changes collectives on their way. It sits above record::observe, so that the
// trace holds what a program with that mistake would have called.
class FaultyBackend : public record::DecoratedBackend {
 public:
  FaultyBackend(BackendPtr inner, std::shared_ptr<Tampering> tampering);

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

 protected:
  WorkPtr around(const record::Call& call, Start start) override;
  BackendPtr decorate_member(BackendPtr member, const StorePtr& store) override;

 private:
  const std::shared_ptr<Tampering> tampering_;
};

// Work that is done, with these tensors as they are for its result.
WorkPtr done(const Tensors& tensors);

// Where the program stands in its job.
struct Placement {
  int rank = 0;
  int world_size = 1;
  std::uint64_t seed = 0;
  std::chrono::milliseconds timeout{};  // of every operation
};

struct Parts {
  Placement place;
  Program program;
  ProcessGroupPtr group;
  std::shared_ptr<Tampering> tampering;  // with the group's collectives
  record::Probes& probes;
  TensorData train, test;
  DistributedSampler sampler;
  torch::Generator dice;  // for augmentation
  Net model{nullptr};
  std::vector<at::Tensor> parameters;  // the model's
  std::optional<DistributedDataParallel<Net>> ddp;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::int64_t step = 0;  // updates so far
  at::Tensor last_loss;

  // In the order in which the loop calls them.
  std::function<void()> start;                                  // the replicas become equal
  std::function<std::vector<Ids>(std::int64_t epoch)> batches;  // this rank's, of a pass
  std::function<TensorData(const Ids&, std::int64_t epoch)> fetch;
  std::function<void()> zero_grad;
  std::function<at::Tensor(const at::Tensor& inputs)> forward;
  std::function<at::Tensor(const at::Tensor& losses)> loss;  // what backward() is called on
  std::function<bool(std::int64_t batch)> updates;  // whether this batch of a pass ends an update
  std::function<void()> reduce;                     // the gradients
  std::function<void()> clip;
  std::function<void()> update;
  std::function<void()> share;  // what ranks tell each other after an update
  std::function<void()> end_epoch;
  std::function<Ids()> evaluation_ids;
  std::function<void(at::Tensor& score_and_count)> reduce_score;
  bool reports = true;  // this rank says what the score is
};

// What the oracle goes by: plain tensors, taken beside the loop, of one rank. One per update, or per batch.
struct Seen {
  std::vector<at::Tensor> parameters;  // before each update, and at the end: flat
  std::vector<at::Tensor> gradients;   // as the optimizer gets them: flat
  std::vector<at::Tensor> inputs, targets, ids, steps, epochs;  // per batch
  at::Tensor reported;  // score and count of the last evaluation: [2]
};

// The program as it should be, on its group. Stays where it is: its functions refer to it.
std::unique_ptr<Parts> make_parts(const Program& program, const Placement& place,
                                  ProcessGroupPtr group, std::shared_ptr<Tampering> tampering,
                                  record::Probes& probes);
// Collective: trains, evaluates after every epoch.
Seen train(Parts& parts);

at::Tensor flat(const std::vector<at::Tensor>& tensors);
at::Tensor flat_gradients(const std::vector<at::Tensor>& parameters);  // zeros where there is none

}  // namespace lockstep::mutants
