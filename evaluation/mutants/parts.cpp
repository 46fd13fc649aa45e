#include "parts.h"

#include <lockstep/train/clip_grad.h>
#include <lockstep/train/seeding.h>

namespace lockstep::mutants {
namespace {

bool is_mine(const Parts& parts, std::size_t parameter) {
  return static_cast<int>(parameter) % parts.place.world_size == parts.place.rank;
}

// Parameters of which this rank's optimizer keeps the state.
std::vector<at::Tensor> own(const Parts& parts) {
  if (parts.program.engine != Engine::sharded) return parts.parameters;
  std::vector<at::Tensor> mine;
  for (std::size_t i = 0; i < parts.parameters.size(); ++i)
    if (is_mine(parts, i)) mine.push_back(parts.parameters[i]);
  return mine;
}

void broadcast_from(Parts& parts, at::Tensor parameter, int root) {
  torch::NoGradGuard no_grad;
  broadcast(*parts.group, parameter, root);
}

void start(Parts& parts) {
  parts.probes.attach(*parts.model);
  if (parts.program.engine == Engine::ddp) {
    parts.ddp.emplace(parts.model, parts.group,
                      DdpOptions{.bucket_cap_mb = parts.program.settings.bucket_cap_mb});
    parts.probes.engine("distributed_data_parallel");
  } else {
    for (const auto& parameter : parts.parameters) broadcast_from(parts, parameter, 0);
  }
  parts.optimizer = parts.program.make_optimizer(own(parts));
}

TensorData fetch(Parts& parts, const Ids& ids) {
  auto batch = take(parts.train, ids);
  const double noise = parts.program.settings.noise;
  if (noise > 0) {
    const auto numbers = torch::randn(batch.inputs.sizes(), parts.dice);
    parts.probes.random_numbers(ids, numbers);
    batch.inputs = batch.inputs + noise * numbers;
  }
  return batch;
}

void reduce(Parts& parts) {
  const auto engine = parts.program.engine;
  if (engine == Engine::ddp) return;  // the backward has done it
  if (engine == Engine::by_hand) {
    for (auto& parameter : parts.parameters) {
      all_reduce(*parts.group, parameter.mutable_grad());
      parameter.mutable_grad() /= parts.place.world_size;
    }
    return;
  }
  auto gradients = flat_gradients(parts.parameters);
  all_reduce(*parts.group, gradients);
  gradients /= parts.place.world_size;
  std::int64_t at = 0;
  for (auto& parameter : parts.parameters) {
    parameter.mutable_grad().copy_(
        gradients.narrow(0, at, parameter.numel()).view(parameter.sizes()));
    at += parameter.numel();
  }
}

void clip(Parts& parts) {
  const double max_norm = parts.program.settings.max_norm;
  if (max_norm <= 0) return;
  parts.probes.clip(max_norm, flat_gradients(parts.parameters).norm().item<double>());
  clip_grad_norm_(parts.parameters, max_norm);
}

// by_hand: the mean loss, for the log, and rank 0's word whether to go on.
void share(Parts& parts) {
  if (parts.program.engine == Engine::sharded)
    for (std::size_t i = 0; i < parts.parameters.size(); ++i)
      broadcast_from(parts, parts.parameters[i], static_cast<int>(i) % parts.place.world_size);
  if (parts.program.engine != Engine::by_hand) return;
  auto loss = parts.last_loss.clone();
  all_reduce(*parts.group, loss);
  auto stop = torch::zeros({1}, torch::kInt64);
  broadcast(*parts.group, stop);
}

void end_epoch(Parts& parts) {
  if (!parts.program.settings.halve_lr) return;
  for (auto& group : parts.optimizer->param_groups())
    group.options().set_lr(group.options().get_lr() / 2);
}

Ids evaluation_ids(const Parts& parts) {
  Ids ids;
  for (std::int64_t id = parts.place.rank; id < parts.test.size(); id += parts.place.world_size)
    ids.push_back(id);
  return ids;
}

}  // namespace

FaultyBackend::FaultyBackend(BackendPtr inner, std::shared_ptr<Tampering> tampering)
    : DecoratedBackend(std::move(inner)), tampering_(std::move(tampering)) {}

WorkPtr FaultyBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const Tampering::AllReduce inner_call = [this](Tensors& t, const c10d::AllreduceOptions& o) {
    return DecoratedBackend::allreduce(t, o);
  };
  return tampering_->allreduce ? tampering_->allreduce(tensors, options, inner_call)
                               : inner_call(tensors, options);
}

WorkPtr FaultyBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const Tampering::Broadcast inner_call = [this](Tensors& t, const c10d::BroadcastOptions& o) {
    return DecoratedBackend::broadcast(t, o);
  };
  return tampering_->broadcast ? tampering_->broadcast(tensors, options, inner_call)
                               : inner_call(tensors, options);
}

WorkPtr FaultyBackend::send(Tensors& tensors, int to, int tag) {
  return inner()->send(tensors, to, tag);
}

WorkPtr FaultyBackend::recv(Tensors& tensors, int from, int tag) {
  return inner()->recv(tensors, from, tag);
}

WorkPtr FaultyBackend::recvAnysource(Tensors& tensors, int tag) {
  return inner()->recvAnysource(tensors, tag);
}

WorkPtr FaultyBackend::around(const record::Call&, Start start) {
  return start();
}

BackendPtr FaultyBackend::decorate_member(BackendPtr member, const StorePtr&) {
  return member;
}

WorkPtr done(const Tensors& tensors) {
  auto result =
      c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  result->markCompleted(c10::IValue(tensors));
  return c10d::Work::create_from_future(result);
}

at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> rows;
  for (const auto& tensor : tensors) rows.push_back(tensor.detach().reshape(-1));
  return torch::cat(rows).clone();
}

at::Tensor flat_gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters)
    gradients.push_back(parameter.grad().defined() ? parameter.grad()
                                                   : torch::zeros_like(parameter));
  return flat(gradients);
}

std::unique_ptr<Parts> make_parts(const Program& program, const Placement& place,
                                  ProcessGroupPtr group, std::shared_ptr<Tampering> tampering,
                                  record::Probes& probes) {
  torch::manual_seed(place.seed);  // equal models
  auto made = std::unique_ptr<Parts>(new Parts{
      .place = place,
      .program = program,
      .group = std::move(group),
      .tampering = std::move(tampering),
      .probes = probes,
      .train = program.data(Split::train),
      .test = program.data(Split::test),
      .sampler = DistributedSampler({.dataset_size = program.data(Split::train).size(),
                                     .num_replicas = place.world_size,
                                     .rank = place.rank,
                                     .seed = place.seed}),
      .dice = torch::make_generator<at::CPUGeneratorImpl>(rank_seed(place.seed, place.rank)),
      .model = program.make_model()});
  auto* parts = made.get();
  const auto settings = program.settings;
  parts->parameters = parts->model->parameters();
  manual_seed_per_rank(place.seed, place.rank);  // for dropout
  parts->start = [parts] { start(*parts); };
  parts->batches = [parts, settings](std::int64_t epoch) {
    parts->probes.set_epoch(epoch);
    parts->sampler.set_epoch(epoch);
    return parts->sampler.batches(settings.batch);
  };
  parts->fetch = [parts](const Ids& ids, std::int64_t) { return fetch(*parts, ids); };
  parts->zero_grad = [parts] {
    parts->probes.zero_grad("module");
    parts->model->zero_grad();
  };
  parts->forward = [parts](const at::Tensor& inputs) {
    return parts->ddp ? (*parts->ddp)(inputs) : parts->model->forward(inputs);
  };
  parts->loss = [settings](const at::Tensor& losses) {
    return losses.mean() / static_cast<double>(settings.microbatches);
  };
  parts->updates = [settings](std::int64_t batch) {
    return (batch + 1) % settings.microbatches == 0;
  };
  parts->reduce = [parts] { reduce(*parts); };
  parts->clip = [parts] { clip(*parts); };
  parts->update = [parts] { parts->optimizer->step(); };
  parts->share = [parts] { share(*parts); };
  parts->end_epoch = [parts] { end_epoch(*parts); };
  parts->evaluation_ids = [parts] { return evaluation_ids(*parts); };
  parts->reduce_score = [parts](at::Tensor& total) { all_reduce(*parts->group, total); };
  return made;
}

}  // namespace lockstep::mutants
