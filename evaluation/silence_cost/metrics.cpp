// Figures: what is reported of a model that was trained rightly. And a loss over all ranks' features.
#include <lockstep/record/recorder.h>
#include <lockstep/train/functional.h>

#include <algorithm>

#include "silence.h"

namespace lockstep::silence {
namespace {

constexpr std::int64_t kExam =
    1'009;  // a test set that neither two nor four ranks can share equally

struct Score {
  double hits = 0, count = 0;
};

Score score(Mlp& net, const TensorData& test, const Ids& ids) {
  const auto count = static_cast<double>(ids.size());
  return {accuracy(net, take(test, ids)) * count, count};
}

Score sum_of(const Job& job, const Score& own) {
  auto sums = at::tensor({own.hits, own.count}, at::kDouble);
  all_reduce(*job.group, sums);
  return {sums[0].item<double>(), sums[1].item<double>()};
}

// The test set in the order of its classes, as a folder a class is listed; a piece of it for each rank.
double evaluation(const Job& job, const Fault& fault) {
  auto net = trained(job, job.train, shuffled(job));
  const auto order = job.test.targets.narrow(0, 0, kExam)
                         .argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const TensorData exam{job.test.inputs.index_select(0, order),
                        job.test.targets.index_select(0, order), job.test.phase};
  const int rank = job.rank(), world_size = job.world_size();
  Ids mine;
  for (auto i = rank * kExam / world_size; i < (rank + 1) * kExam / world_size; ++i)
    mine.push_back(i);
  if (fault("evaluation-padding"))
    mine = DistributedSampler(
               {.dataset_size = kExam, .num_replicas = world_size, .rank = rank, .shuffle = false})
               .indices();
  {
    const torch::NoGradGuard evaluation;
    tell_pass(0, kExam, {mine});
  }
  const auto own = score(net, exam, mine);
  const auto all = sum_of(job, own);
  auto reported = all;
  if (fault("rank-zero-metric")) reported = own;
  if (fault("local-hits-global-count")) reported.hits = own.hits;
  if (rank == 0 || !fault("rank-zero-metric"))
    record::metric("accuracy", "evaluation", reported.hits, reported.count);
  return reported.hits / reported.count;
}

// How far two looks at 512 test samples, of the same weights, are apart.
double two_looks(const Job& job, const Fault& fault) {
  auto net = trained(job, job.train, shuffled(job));
  DistributedSampler sampler({.dataset_size = job.test.size(),
                              .num_replicas = job.world_size(),
                              .rank = job.rank(),
                              .shuffle = fault("shuffled-evaluation"),
                              .seed = job.seed});
  double looks[2] = {};
  for (const int look : {0, 1}) {
    sampler.set_epoch(look);
    auto ids = sampler.indices();
    ids.resize(static_cast<std::size_t>(512 / job.world_size()));
    {
      const torch::NoGradGuard evaluation;
      tell_pass(look, job.test.size(), {ids});
    }
    const auto all = sum_of(job, score(net, job.test, ids));
    looks[look] = all.hits / all.count;
  }
  return looks[1] - looks[0];
}

// Two looks at each image, as it is and mirrored; unit features [N, 2, 16].
template <class Model>
at::Tensor features_of(Model& model, const at::Tensor& images) {
  const auto mirrored = images.view({-1, 28, 28}).flip(2).reshape({-1, 784});
  const auto features = model(at::cat({images, mirrored}));
  return torch::nn::functional::normalize(features).view({2, -1, 16}).transpose(0, 1);
}

// The share of test samples whose feature is nearest the mean feature of their class.
double nearest_mean(Mlp& net, const TensorData& train, const TensorData& test) {
  const torch::NoGradGuard no_grad;
  const auto feature = [&](const at::Tensor& images) {
    return torch::nn::functional::normalize(net->forward(images));
  };
  const auto classes = at::one_hot(train.targets, 10).to(at::kFloat);
  const auto means = classes.t().mm(feature(train.inputs)) / classes.sum(0).unsqueeze(1);
  return share_right(-at::cdist(feature(test.inputs), means), test.targets);
}

double contrastive(const Job& job, const Fault& fault) {
  Mlp net(784, 64, 16);
  train_ddp(job, net, shuffled(job), [&](auto& model, const Ids& ids) {
    const auto own = features_of(model, take(job.train, ids).inputs).contiguous();
    std::vector<at::Tensor> gathered;
    if (fault("gather-loses-graph")) {
      gathered = all_gather(*job.group, own.detach());
      gathered[static_cast<std::size_t>(job.rank())] = own;
    } else {
      gathered = functional::all_gather(job.group, own);
    }
    const auto all = at::cat(gathered);
    const auto likeness = all.select(1, 0).mm(all.select(1, 1).t()) / 0.2;
    return mean_loss(likeness, at::arange(all.size(0)));
  });
  return nearest_mean(net, job.train, job.test);
}

}  // namespace

std::vector<Setting> metrics_settings() {
  return {{"evaluation",
           {"evaluation-padding", "rank-zero-metric", "local-hits-global-count"},
           evaluation},
          {"two-looks", {"shuffled-evaluation"}, two_looks},
          {"contrastive", {"gather-loses-graph"}, contrastive}};
}

}  // namespace lockstep::silence
