// A job without a call to a probe: what the library tells of it is what probes would have told.
#include <ATen/record_function.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/checkpoint/model_state.h>
#include <lockstep/diagnose/diagnose.h>
#include <lockstep/record/record_into.h>
#include <lockstep/record/recorder.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/clip_grad.h>
#include <lockstep/train/dataset.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/grad_scaler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/watched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <future>
#include <tuple>

#include "recorded.h"

namespace lockstep::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;

struct Faults {
  bool one_epoch = false, bypasses = false, sums_loss = false, tells_no_loss = false;
  bool clips_first = false;
};

// What anybody writes; 3 epochs of 3 batches.
Job training(const Faults& faults = {}) {
  return [faults](const ProcessGroupPtr& group, const TensorData& data) {
    record::intent({.global_batch = kBatch * kRanks, .loss_reduction = "mean"});
    auto net = seeded(3, [] { return Mlp(12, 24, 4); });
    DistributedDataParallel<Mlp> model(net, group);
    SGD optimizer(model.parameters(), 0.05);
    CosineAnnealingLR schedule(optimizer, {.T_max = 9});
    auto sampler = sampler_of(group);
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      if (!faults.one_epoch) sampler.set_epoch(epoch);
      for (const auto& ids : sampler.batches(kBatch)) {
        const auto batch = take(data, ids);
        optimizer.zero_grad();
        if (faults.clips_first) clip_grad_norm_(model.parameters(), 0.1);
        const auto outputs = faults.bypasses ? net->forward(batch.inputs) : model(batch.inputs);
        if (faults.tells_no_loss) {
          at::cross_entropy_loss(outputs, batch.targets).backward();
        } else {
          const auto each = cross_entropy(outputs, batch.targets);
          (faults.sums_loss ? each.sum() : each.mean()).backward();
        }
        optimizer.step();
        schedule.step();
      }
    }
  };
}

TEST(Recorder, ARightJobIsCleanAndNothingIsMissing) {
  const auto trace = record(training());
  const auto report = diagnose::diagnose(trace);
  EXPECT_THAT(names_of(report), SizeIs(0));
  for (const auto& rank : trace.ranks) {
    EXPECT_THAT(all<trace::Model>(rank), SizeIs(1));
    ASSERT_THAT(all<trace::Engine>(rank), SizeIs(1));
    EXPECT_EQ(all<trace::Engine>(rank)[0].kind, "distributed_data_parallel");
    EXPECT_EQ(rank.all<trace::Parameters>().front().step, -1);
    EXPECT_THAT(all<trace::Dataset>(rank), SizeIs(1));
    EXPECT_THAT(all<trace::SetEpoch>(rank), SizeIs(3));
    EXPECT_THAT(all<trace::PassBegin>(rank), SizeIs(3));
    ASSERT_THAT(all<trace::PassEnd>(rank), SizeIs(3));
    EXPECT_EQ(all<trace::PassEnd>(rank)[2].batches, 3);
    EXPECT_THAT(all<trace::Samples>(rank), SizeIs(9));
    EXPECT_THAT(all<trace::Forward>(rank), SizeIs(9));
    EXPECT_THAT(all<trace::Update>(rank), SizeIs(9));
    EXPECT_THAT(all<trace::ZeroGrad>(rank), SizeIs(9));
    EXPECT_THAT(all<trace::LocalGradients>(rank), SizeIs(6)) << "steps 0 to 4, and 8";
    EXPECT_THAT(all<trace::ReducedGradients>(rank), SizeIs(6));
    EXPECT_THAT(all<trace::Backward>(rank), SizeIs(3)) << "in the others the losses say more";
    const auto losses = all<trace::Loss>(rank);
    ASSERT_THAT(losses, SizeIs(6));
    for (const auto& loss : losses) {
      EXPECT_EQ(loss.count, kBatch);
      EXPECT_NEAR(loss.backward_value, loss.sum / kBatch, 1e-6);
    }
    const auto schedule = all<trace::Schedule>(rank);
    ASSERT_THAT(schedule, SizeIs(10)) << "where it begins, and after each step";
    EXPECT_EQ(schedule.front().position, 0);
    EXPECT_EQ(schedule.back().position, 9);
    EXPECT_EQ(schedule.back().length, 9);
    std::vector<std::string> actions;
    for (const auto& group : all<trace::Group>(rank)) actions.push_back(group.action);
    EXPECT_THAT(actions, ElementsAre("join", "joined", "leave"));
  }
}

TEST(Recorder, OfALossThatIsNotToldTheValueIsRecordedInEveryStep) {
  const auto told = record(training()), not_told = record(training({.tells_no_loss = true}));
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_THAT(all<trace::Loss>(not_told.ranks[rank]), SizeIs(0));
    const auto values = not_told.ranks[rank].all<trace::Backward>();
    ASSERT_THAT(values, SizeIs(9));
    for (const auto& loss : told.ranks[rank].all<trace::Loss>())
      EXPECT_NEAR(values[static_cast<std::size_t>(loss.step)].event->value,
                  loss.event->backward_value, 1e-5);
  }
}

TEST(Recorder, FaultsAreNamed) {
  EXPECT_THAT(names_of(diagnose::diagnose(record(training({.one_epoch = true})))),
              ElementsAre("missing-set-epoch"));
  EXPECT_THAT(names_of(diagnose::diagnose(record(training({.bypasses = true})))),
              ElementsAre("forward-bypasses-wrapper"));
  EXPECT_THAT(names_of(diagnose::diagnose(record(training({.sums_loss = true})))),
              ElementsAre("sum-not-mean"));
  EXPECT_THAT(names_of(diagnose::diagnose(record(training({.clips_first = true})))),
              ElementsAre("clipped-before-backward"));
}

// An update an epoch, of its three batches.
Job accumulating(bool clears_before_each) {
  return [=](const ProcessGroupPtr& group, const TensorData& data) {
    DistributedDataParallel<Mlp> model(seeded(3, [] { return Mlp(12, 24, 4); }), group);
    SGD optimizer(model.parameters(), 0.05);
    auto sampler = sampler_of(group);
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      sampler.set_epoch(epoch);
      optimizer.zero_grad();
      for (const auto& ids : sampler.batches(kBatch)) {
        const auto batch = take(data, ids);
        if (clears_before_each) optimizer.zero_grad();
        (cross_entropy(model(batch.inputs), batch.targets).mean() / 3).backward();
      }
      optimizer.step();
    }
  };
}

TEST(Recorder, GradientsThatAreClearedBeforeTheyAreUsedAreTold) {
  const auto right = record(accumulating(false)), wrong = record(accumulating(true));
  EXPECT_THAT(names_of(diagnose::diagnose(right)), ElementsAre("sync-every-microbatch"));
  EXPECT_THAT(names_of(diagnose::diagnose(wrong)),
              ElementsAre("sync-every-microbatch", "gradients-cleared-too-early"));
  EXPECT_THAT(all<trace::GradientCleared>(right.ranks[0]), SizeIs(0));
  EXPECT_THAT(all<trace::GradientCleared>(wrong.ranks[0]), SizeIs(3 * 2 * 4))
      << "updates, batches but the last, parameters";
}

struct OddRank {
  double dropout = 0.1, weight_decay = 0, input_scale = 1, loss_weight = 1;
};

// Rank 1 is set up as `odd` says.
Job with_odd_rank(const OddRank& odd) {
  return [odd](const ProcessGroupPtr& group, const TensorData& data) {
    const auto mine = group->getRank() == 1 ? odd : OddRank{};
    torch::nn::Sequential net(torch::nn::Linear(12, 24), torch::nn::Dropout(mine.dropout),
                              torch::nn::Linear(24, 4));
    DistributedDataParallel<torch::nn::Sequential> model(net, group);
    SGD optimizer(model.parameters(),
                  torch::optim::SGDOptions(0.05).weight_decay(mine.weight_decay));
    auto sampler = sampler_of(group);
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      sampler.set_epoch(epoch);
      for (const auto& ids : sampler.batches(kBatch)) {
        const auto batch = take(data, ids);
        optimizer.zero_grad();
        const auto each = cross_entropy(model(batch.inputs * mine.input_scale), batch.targets);
        (each.mean() * mine.loss_weight).backward();
        optimizer.step();
      }
    }
  };
}

TEST(Recorder, OneRankThatIsSetUpOtherwiseIsNamed) {
  EXPECT_THAT(names_of(diagnose::diagnose(record(with_odd_rank({})))), SizeIs(0));
  const std::vector<std::tuple<OddRank, const char*, const char*>> cases = {
      {{.dropout = 0.5}, "configuration-differs", "Dropout(p=0.5"},
      {{.weight_decay = 0.1}, "optimizer-differs", "weight_decay is 0 on rank 0 and 0.1 on rank 1"},
      {{.input_scale = 255}, "samples-differ-across-ranks", "are other numbers on each"},
      {{.loss_weight = 2}, "loss-weight-differs", "2 on rank 1"}};
  for (const auto& [odd, name, said] : cases) {
    const auto found = diagnose::diagnose(record(with_odd_rank(odd))).findings;
    ASSERT_THAT(found, SizeIs(1)) << said;
    EXPECT_EQ(found[0].pitfall, name);
    EXPECT_EQ(found[0].step, 0);
    EXPECT_THAT(found[0].evidence, ::testing::HasSubstr(said));
  }
}

// Torch's default throws where options are asked to serialize.
struct OptionsOfMyOwn : torch::optim::OptimizerCloneableOptions<OptionsOfMyOwn> {
  double get_lr() const override { return 0.05; }
  void set_lr(double) override {}
};

class OptimizerOfMyOwn : public torch::optim::Optimizer {
 public:
  explicit OptimizerOfMyOwn(std::vector<at::Tensor> parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<OptionsOfMyOwn>()) {}
  torch::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : param_groups()[0].params()) parameter -= 0.05 * parameter.grad();
    return {};
  }
};

TEST(Recorder, AnOptimizerWhoseOptionsDoNotSerializeIsRecorded) {
  const auto trace = record([](const ProcessGroupPtr& group, const TensorData& data) {
    DistributedDataParallel<Mlp> model(seeded(3, [] { return Mlp(12, 24, 4); }), group);
    Watched<OptimizerOfMyOwn> optimizer(model.parameters());
    auto sampler = sampler_of(group);
    for (const auto& ids : sampler.batches(kBatch)) {
      const auto batch = take(data, ids);
      optimizer.zero_grad();
      cross_entropy(model(batch.inputs), batch.targets).mean().backward();
      optimizer.step();
    }
  });
  EXPECT_THAT(names_of(diagnose::diagnose(trace)), SizeIs(0));
  for (const auto& rank : trace.ranks) EXPECT_THAT(all<trace::Update>(rank), SizeIs(3));
}

// What a program does by hand with each parameter.
using OfParameter = std::function<void(const ProcessGroupPtr&, at::Tensor&)>;

// Without an engine; an epoch of 3 batches.
Job by_hand(const OfParameter& before_update, const OfParameter& after_update) {
  return [=](const ProcessGroupPtr& group, const TensorData& data) {
    auto net = seeded(3, [] { return Mlp(12, 24, 4); });
    SGD optimizer(net->parameters(), 0.05);
    for (const auto& ids : sampler_of(group).batches(kBatch)) {
      const auto batch = take(data, ids);
      optimizer.zero_grad();
      cross_entropy(net->forward(batch.inputs), batch.targets).mean().backward();
      for (auto& parameter : net->parameters()) before_update(group, parameter);
      optimizer.step();
      for (auto& parameter : net->parameters()) after_update(group, parameter);
    }
  };
}

void nothing(const ProcessGroupPtr&, at::Tensor&) {}

// The model is what the optimizer moves.
TEST(Recorder, WithoutAnEngineTheOptimizersParametersAreTheModel) {
  const auto reduce = [](const ProcessGroupPtr& group, at::Tensor& parameter) {
    all_reduce(*group, parameter.mutable_grad());
    parameter.mutable_grad() /= kRanks;
  };
  const auto right = record(by_hand(reduce, nothing));
  EXPECT_THAT(names_of(diagnose::diagnose(right)), SizeIs(0));
  EXPECT_THAT(all<trace::Model>(right.ranks[0]), SizeIs(1));
  EXPECT_THAT(all<trace::LocalGradients>(right.ranks[0]), SizeIs(3));
  EXPECT_THAT(names_of(diagnose::diagnose(record(by_hand(nothing, nothing)))),
              ElementsAre("no-gradient-sync"));
}

// The losses of two batches are added up, and a backward starts from a part of the first one and from the sum.
TEST(Recorder, ALossThatIsInAnEarlierBackwardTooIsTold) {
  enum class Between { nothing, clears, detaches, takes_others };
  const auto adding = [](Between between) {
    return [between](const ProcessGroupPtr& group, const TensorData& data) {
      auto net = seeded(3, [] { return Mlp(12, 24, 4); });
      SGD optimizer(net->parameters(), 0.05);
      const auto batches = sampler_of(group).batches(kBatch);
      auto noise = torch::zeros({12}, torch::requires_grad());
      const auto loss = [&](std::size_t i) {
        const auto batch = take(data, batches.at(i));
        return cross_entropy(net->forward(batch.inputs + noise), batch.targets).mean();
      };
      loss(0).backward();
      auto first = loss(1);
      const std::vector<at::Tensor> inputs{noise};
      if (between == Between::takes_others)
        first.backward({}, /*retain_graph=*/true, /*create_graph=*/false, inputs);
      else
        (first / 2).backward({}, /*retain_graph=*/true);
      if (between == Between::clears) optimizer.zero_grad();
      if (between == Between::detaches) first = first.detach();
      (first + loss(2)).backward();
      optimizer.step();
    };
  };
  const auto told = record(adding(Between::nothing));
  ASSERT_THAT(all<trace::LossAgain>(told.ranks[1]), SizeIs(1));
  EXPECT_EQ(all<trace::LossAgain>(told.ranks[1]).front().earlier, 1);
  EXPECT_EQ(told.ranks[1].all<trace::LossAgain>().front().step, 0);
  for (const auto between : {Between::clears, Between::detaches, Between::takes_others})
    EXPECT_THAT(all<trace::LossAgain>(record(adding(between)).ranks[1]), SizeIs(0));
}

// What was recorded of two models, one after the other.
std::vector<trace::Parameters> of_two_models(const trace::Trace& trace) {
  EXPECT_THAT(all<trace::Model>(trace.ranks[0]), SizeIs(2));
  EXPECT_THAT(all<trace::OutsideParameters>(trace.ranks[0]), SizeIs(0));
  return all<trace::Parameters>(trace.ranks[0]);
}

TEST(Recorder, AModelThatComesAfterTheLastUpdateOfAnotherIsRecorded) {
  const auto folds = [](bool alike) {
    return [alike](const ProcessGroupPtr& group, const TensorData& data) {
      for (int fold = 0; fold < 2; ++fold) {
        const int seed = 3 + fold * (alike ? 1 : 1 + group->getRank());
        auto net = seeded(seed, [] { return Mlp(12, 24, 4); });
        SGD layer(net->fc1->parameters(), 0.05), other(net->fc2->parameters(), 0.05);
        auto sampler = sampler_of(group);
        sampler.set_epoch(fold);
        for (const auto& ids : sampler.batches(kBatch)) {
          const auto batch = take(data, ids);
          net->zero_grad();
          cross_entropy(net->forward(batch.inputs), batch.targets).mean().backward();
          for (auto& parameter : net->parameters()) {
            all_reduce(*group, parameter.mutable_grad());
            parameter.mutable_grad() /= kRanks;
          }
          layer.step();
          other.step();
        }
      }
    };
  };
  const auto right = record(folds(true));
  EXPECT_THAT(names_of(diagnose::diagnose(right)), SizeIs(0));
  EXPECT_THAT(of_two_models(right), SizeIs(13));  // before the first update, and after each
  const auto wrong = diagnose::diagnose(record(folds(false)));
  EXPECT_THAT(names_of(wrong), ElementsAre("replicas-diverged"));
  EXPECT_EQ(wrong.findings.at(0).step, 6);
}

enum class Thaw { by_a_group, by_an_optimizer, by_an_optimizer_after_one_more_step };

// A layer that is trained from the second epoch on.
Job thaws(bool reduces_it, Thaw how) {
  return [=](const ProcessGroupPtr& group, const TensorData& data) {
    auto net = seeded(3, [] { return Mlp(12, 24, 4); });
    SGD head(net->fc2->parameters(), 0.05);
    std::optional<SGD> whole;
    auto sampler = sampler_of(group);
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      sampler.set_epoch(epoch);
      if (epoch == 1 && how == Thaw::by_a_group)
        head.add_param_group(torch::optim::OptimizerParamGroup(net->fc1->parameters()));
      else if (epoch == 1)
        whole.emplace(net->parameters(), 0.05);
      if (whole && how == Thaw::by_an_optimizer_after_one_more_step) head.step();
      for (const auto& ids : sampler.batches(kBatch)) {
        const auto batch = take(data, ids);
        net->zero_grad();
        cross_entropy(net->forward(batch.inputs), batch.targets).mean().backward();
        for (auto& parameter : reduces_it ? net->parameters() : net->fc2->parameters()) {
          all_reduce(*group, parameter.mutable_grad());
          parameter.mutable_grad() /= kRanks;
        }
        whole ? whole->step() : head.step();
      }
    }
  };
}

TEST(Recorder, ParametersThatAnOptimizerGetsLaterAreTheModelsToo) {
  for (const auto how :
       {Thaw::by_a_group, Thaw::by_an_optimizer, Thaw::by_an_optimizer_after_one_more_step}) {
    const auto right = record(thaws(true, how));
    EXPECT_THAT(names_of(diagnose::diagnose(right)), SizeIs(0));
    const auto models = all<trace::Model>(right.ranks[0]);
    ASSERT_THAT(models, SizeIs(2));
    EXPECT_THAT(models[0].names, SizeIs(2));
    EXPECT_THAT(models[1].names, SizeIs(4));
    // Of the step that thaws the layer the gradients are not recorded.
    const auto updates = all<trace::Update>(right.ranks[0]).size();
    EXPECT_THAT(all<trace::LocalGradients>(right.ranks[0]), SizeIs(updates - 1));
    const auto wrong = diagnose::diagnose(record(thaws(false, how)));
    EXPECT_THAT(names_of(wrong), ElementsAre("gradient-not-the-mean", "replicas-diverged"));
    EXPECT_EQ(wrong.findings.at(1).step, static_cast<std::int64_t>(updates) - 3);
  }
}

TEST(Recorder, AModelThatIsWrappedAfterTheLastUpdateOfAnotherIsRecorded) {
  const auto folds = [](bool reduces) {
    return [reduces](const ProcessGroupPtr& group, const TensorData& data) {
      std::vector<std::unique_ptr<DistributedDataParallel<Mlp>>> kept;
      for (int fold = 0; fold < 2; ++fold) {
        auto net = seeded(3 + fold, [] { return Mlp(12, 24, 4); });
        auto& model =
            *kept.emplace_back(std::make_unique<DistributedDataParallel<Mlp>>(net, group));
        std::optional<NoSync> alone;
        if (!reduces && fold == 1) alone.emplace(model.engine());
        SGD optimizer(model.parameters(), 0.05);
        auto sampler = sampler_of(group);
        sampler.set_epoch(fold);
        for (const auto& ids : sampler.batches(kBatch)) {
          const auto batch = take(data, ids);
          optimizer.zero_grad();
          cross_entropy(model(batch.inputs), batch.targets).mean().backward();
          optimizer.step();
        }
      }
    };
  };
  const auto right = record(folds(true));
  EXPECT_THAT(names_of(diagnose::diagnose(right)), SizeIs(0));
  EXPECT_THAT(of_two_models(right), SizeIs(7));
  const auto wrong = diagnose::diagnose(record(folds(false)));
  EXPECT_THAT(names_of(wrong), ElementsAre("replicas-diverged"));
  EXPECT_EQ(wrong.findings.at(0).step, 3);
}

// A scale beside the model, which the engine does not know: each rank's own gradient moves it.
TEST(Recorder, WhatAnOptimizerHoldsBesideTheModelIsTold) {
  const auto trace = record([](const ProcessGroupPtr& group, const TensorData& data) {
    auto net = seeded(3, [] { return Mlp(12, 24, 4); });
    DistributedDataParallel<Mlp> model(net, group);
    const auto scale = torch::ones({}, torch::requires_grad());
    auto parameters = model.parameters();
    parameters.push_back(scale);
    SGD optimizer(parameters, 0.05);
    for (const auto& ids : sampler_of(group).batches(kBatch)) {
      const auto batch = take(data, ids);
      optimizer.zero_grad();
      cross_entropy(model(batch.inputs) * scale, batch.targets).mean().backward();
      optimizer.step();
    }
  });
  EXPECT_THAT(names_of(diagnose::diagnose(trace)), ElementsAre("outside-parameters-differ"));
  const auto told = all<trace::OutsideParameters>(trace.ranks[0]);
  ASSERT_THAT(told, SizeIs(4));  // once before the first step
  EXPECT_THAT(told[0].names, ElementsAre("parameter_0"));
  EXPECT_EQ(all<trace::Model>(trace.ranks[0]).at(0).names.size(), 4u);
}

TEST(Recorder, WhetherAnythingChangesTheParametersBetweenUpdatesIsTold) {
  for (const bool averages : {true, false}) {
    const auto average = [averages](const ProcessGroupPtr& group, at::Tensor& parameter) {
      const torch::NoGradGuard no_grad;
      auto mean = parameter.detach().clone();
      all_reduce(*group, mean);
      if (averages) parameter.copy_(mean / kRanks);
    };
    const auto trace = record(by_hand(nothing, average));
    std::vector<bool> changed;
    for (const auto& before : all<trace::BeforeUpdate>(trace.ranks[0])) {
      changed.push_back(before.changed);
      EXPECT_THAT(before.values, SizeIs(before.changed ? 4 : 0));
    }
    EXPECT_THAT(changed, ElementsAre(false, averages, averages, averages));  // and at the end
    // What is reduced to no effect is not taken for an average.
    EXPECT_THAT(
        names_of(diagnose::diagnose(trace)),
        averages ? std::vector<std::string>{} : std::vector<std::string>{"no-gradient-sync"});
  }
}

// A program with data of its own: the k-th forward takes the k-th batch that was dealt.
TEST(Recorder, WithoutItsDataTheBatchesThatWereDealtAreTheSamples) {
  const auto trace = record([](const ProcessGroupPtr& group, const TensorData& data) {
    auto net = seeded(3, [] { return Mlp(12, 24, 4); });
    DistributedDataParallel<Mlp> model(net, group);
    Adam optimizer(model.parameters(), AdamOptions(1e-3));
    auto sampler = sampler_of(group);
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      sampler.set_epoch(epoch);
      sampler.reset();
      while (const auto ids = sampler.next(kBatch)) step_on(*ids, model, optimizer, data);
    }
  });
  EXPECT_THAT(names_of(diagnose::diagnose(trace)), SizeIs(0));
  for (const auto& rank : trace.ranks) {
    ASSERT_THAT(all<trace::Samples>(rank), SizeIs(6));
    EXPECT_THAT(rank.all<trace::Samples>()[4].event->ids.list(), SizeIs(kBatch));
    EXPECT_EQ(rank.all<trace::Samples>()[4].step, 4);
    EXPECT_THAT(all<trace::PassEnd>(rank), SizeIs(2));
    ASSERT_THAT(all<trace::Dataset>(rank), SizeIs(1));
    EXPECT_EQ(all<trace::Dataset>(rank)[0].global_size, kSamples);
  }
}

std::vector<std::string> phases_of_passes(const trace::ParticipantTrace& rank) {
  std::vector<std::string> phases;
  for (const auto& pass : all<trace::PassEnd>(rank)) phases.push_back(pass.phase);
  return phases;
}

// Of a model in evaluation mode a backward says whether a batch was trained on.
TEST(Recorder, ABatchThatTrainsInEvaluationModeIsOfATrainingPass) {
  const auto trace = record([](const ProcessGroupPtr& group, const TensorData& data) {
    auto net = seeded(3, [] { return Mlp(12, 24, 4); });
    DistributedDataParallel<Mlp> model(net, group);
    SGD optimizer(model.parameters(), 0.05);
    auto sampler = sampler_of(group);
    for (int epoch = 0; epoch < 3; ++epoch) {
      sampler.reset();
      while (const auto ids = sampler.next(kBatch)) step_on(*ids, model, optimizer, data);
      model.eval();
    }
  });
  EXPECT_THAT(names_of(diagnose::diagnose(trace)), ElementsAre("missing-set-epoch"));
  for (const auto& rank : trace.ranks) {
    EXPECT_THAT(phases_of_passes(rank), ElementsAre("train", "train", "train"));
    std::vector<std::int64_t> steps;
    for (const auto& samples : rank.all<trace::Samples>()) steps.push_back(samples.step);
    EXPECT_THAT(steps, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
  }
}

// Also where it takes them, as for adversarial samples.
TEST(Recorder, AnEvaluationThatKeepsGradientsIsOne) {
  for (const bool takes : {false, true}) {
    const auto trace = record([takes](const ProcessGroupPtr& group, const TensorData& data) {
      auto net = seeded(3, [] { return Mlp(12, 24, 4); });
      DistributedDataParallel<Mlp> model(net, group);
      SGD optimizer(model.parameters(), 0.05);
      auto sampler = sampler_of(group), held_out = sampler_of(group);
      for (int epoch = 0; epoch < 2; ++epoch) {
        model.train();
        sampler.set_epoch(epoch);
        sampler.reset();
        while (const auto ids = sampler.next(kBatch)) step_on(*ids, model, optimizer, data);
        model.eval();
        held_out.reset();
        while (const auto ids = held_out.next(kBatch))
          if (const auto sum = model(data.inputs.slice(0, ids->front(), ids->front() + 1)).sum();
              takes)
            sum.backward();
      }
    });
    EXPECT_THAT(names_of(diagnose::diagnose(trace)), SizeIs(0));
    for (const auto& rank : trace.ranks)
      EXPECT_THAT(phases_of_passes(rank),
                  ElementsAre("train", "evaluation", "train", "evaluation"));
  }
}

TEST(Recorder, LossesOfAnEvaluationAreOfNoTrainingBatch) {
  const auto trace = record([](const ProcessGroupPtr& group, const TensorData& data) {
    auto net = seeded(3, [] { return Mlp(12, 24, 4); });
    DistributedDataParallel<Mlp> model(net, group);
    SGD optimizer(model.parameters(), 0.05);
    auto sampler = sampler_of(group), held_out = sampler_of(group);
    const auto each_loss = [&](const std::vector<std::int64_t>& ids) {
      const auto batch = take(data, ids);
      return cross_entropy(model(batch.inputs), batch.targets);
    };
    for (int epoch = 0; epoch < 2; ++epoch) {
      model.train();
      sampler.set_epoch(epoch);
      for (const auto& ids : sampler.batches(kBatch)) {
        optimizer.zero_grad();
        each_loss(ids).mean().backward();
        optimizer.step();
      }
      model.eval();
      for (const auto& ids : held_out.batches(kBatch)) each_loss(ids);
    }
  });
  for (const auto& rank : trace.ranks)
    for (const auto& loss : all<trace::Loss>(rank)) EXPECT_EQ(loss.count, kBatch);
}

TEST(Recorder, ScalingAndClippingAreTold) {
  const auto trace = record([](const ProcessGroupPtr& group, const TensorData& data) {
    auto net = seeded(3, [] { return Mlp(12, 24, 4); });
    DistributedDataParallel<Mlp> model(net, group);
    SGD optimizer(model.parameters(), 0.05);
    GradScaler scaler({.init_scale = 8});
    int step = 0;
    for (const auto& ids : sampler_of(group).batches(kBatch)) {
      const auto batch = take(data, ids);
      optimizer.zero_grad();
      auto loss = cross_entropy(model(batch.inputs), batch.targets).mean();
      if (step++ == 1) loss = loss * std::numeric_limits<double>::infinity();
      scaler.scale(loss).backward();
      scaler.unscale_(optimizer);
      clip_grad_norm_(model.parameters(), 0.1);
      scaler.step(optimizer);
      scaler.update();
    }
  });
  for (const auto& rank : trace.ranks) {
    const auto steps = all<trace::ScaledStep>(rank);
    ASSERT_THAT(steps, SizeIs(3));
    EXPECT_EQ(steps[0].scale, 8);
    EXPECT_TRUE(steps[1].found_nonfinite);
    EXPECT_FALSE(steps[1].updates);
    EXPECT_THAT(all<trace::Update>(rank), SizeIs(2));
    EXPECT_THAT(all<trace::Clip>(rank), SizeIs(3));
    EXPECT_EQ(all<trace::Clip>(rank)[0].max_norm, 0.1);
  }
}

// An evaluation's pass is one of its own, whose batches count for no update.
// Also where it takes its batches out of the loader one ahead.
TEST(Recorder, APassEndsWhereTheProgramAsksForMore) {
  for (const bool ahead : {false, true}) {
    const auto trace = record([ahead](const ProcessGroupPtr& group, const TensorData& data) {
      auto net = seeded(3, [] { return Mlp(12, 24, 4); });
      DistributedDataParallel<Mlp> model(net, group);
      SGD optimizer(model.parameters(), 0.05);
      auto sampler = sampler_of(group);
      sampler.reset();
      const auto asks_for_more = [] {
        record::recorder_here()->pass_dealt();
        record::recorder_here()->pass_over();
      };
      int batches = 0;
      while (const auto ids = sampler.next(kBatch)) {
        if (++batches == 3 && ahead) asks_for_more();
        step_on(*ids, model, optimizer, data);
      }
      if (!ahead) asks_for_more();
      barrier(*group);
    });
    for (const auto& rank : trace.ranks) {
      const auto ends = rank.all<trace::PassEnd>();
      ASSERT_THAT(ends, SizeIs(1));
      EXPECT_EQ(ends[0].step, 3);
      std::vector<std::string> later;
      for (const auto& call : rank.all<trace::Collective>())
        if (call.time_ns > ends[0].time_ns) later.push_back(call.event->op);
      EXPECT_THAT(later, ElementsAre("barrier", "barrier")) << "its own, and record()'s; " << ahead;
    }
  }
}

TEST(Recorder, AnEvaluationIsOne) {
  const auto trace = record([](const ProcessGroupPtr& group, const TensorData& data) {
    auto net = seeded(3, [] { return Mlp(12, 24, 4); });
    DistributedDataParallel<Mlp> model(net, group);
    SGD optimizer(model.parameters(), 0.05);
    for (const auto& ids : sampler_of(group).batches(kBatch)) {
      const auto batch = take(data, ids);
      optimizer.zero_grad();
      cross_entropy(model(batch.inputs), batch.targets).mean().backward();
      optimizer.step();
    }
    model.eval();
    const torch::NoGradGuard no_grad;
    for (const auto& ids : sampler_of(group).batches(2 * kBatch)) model(take(data, ids).inputs);
  });
  for (const auto& rank : trace.ranks) {
    const auto passes = all<trace::PassEnd>(rank);
    ASSERT_THAT(passes, SizeIs(2));
    EXPECT_EQ(passes[0].phase, "train");
    EXPECT_EQ(passes[1].phase, "evaluation");
    EXPECT_EQ(passes[1].batches, 2);
    EXPECT_EQ(all<trace::Forward>(rank).back().training, false);
  }
}

// In the middle of an epoch: the epoch's pass goes on behind it.
TEST(Recorder, AnEvaluationInsideAPassLeavesItWhole) {
  const auto trace = record([](const ProcessGroupPtr& group, const TensorData& data) {
    auto net = seeded(3, [] { return Mlp(12, 24, 4); });
    DistributedDataParallel<Mlp> model(net, group);
    SGD optimizer(model.parameters(), 0.05);
    int step = 0;
    for (const auto& ids : sampler_of(group).batches(kBatch)) {
      const auto batch = take(data, ids);
      optimizer.zero_grad();
      cross_entropy(model(batch.inputs), batch.targets).mean().backward();
      optimizer.step();
      if (step++ != 1) continue;
      const torch::NoGradGuard no_grad;
      for (const auto& held_out : sampler_of(group).batches(kBatch)) take(data, held_out);
    }
  });
  for (const auto& rank : trace.ranks) {
    const auto passes = all<trace::PassEnd>(rank);
    ASSERT_THAT(passes, SizeIs(2));
    EXPECT_EQ(passes[0].phase, "evaluation");
    EXPECT_EQ(passes[1].phase, "train");
    EXPECT_EQ(passes[1].batches, 3);
  }
}

// A layer that is put in after wrapping has tensors of its own, which nobody reduces.
TEST(Recorder, ParametersThatAreReplacedAreSeen) {
  const auto trace = record([](const ProcessGroupPtr& group, const TensorData& data) {
    auto net = seeded(3, [] { return Mlp(12, 24, 4); });
    DistributedDataParallel<Mlp> model(net, group, {.find_unused_parameters = true});
    net->fc1 = net->replace_module("fc1", seeded(4, [] { return torch::nn::Linear(12, 24); }));
    SGD optimizer(net->parameters(), 0.05);
    for (const auto& ids : sampler_of(group).batches(kBatch)) {
      const auto batch = take(data, ids);
      cross_entropy(model(batch.inputs), batch.targets).mean().backward();
      optimizer.step();
    }
  });
  EXPECT_THAT(names_of(diagnose::diagnose(trace)), SizeIs(::testing::Ge(1u)));
}

// Who tells by hand is not told twice.
TEST(Recorder, IsSilentBesideProbes) {
  const auto trace = record([](const ProcessGroupPtr& group, const TensorData& data) {
    const auto recorder = record::recorder_here();
    ASSERT_TRUE(recorder);
    record::Probes probes(recorder->writer());
    auto net = seeded(3, [] { return Mlp(12, 24, 4); });
    probes.attach(*net);
    DistributedDataParallel<Mlp> model(net, group);
    SGD optimizer(model.parameters(), 0.05);
    probes.start();
    const auto batch = take(data, {0, 1, 2, 3});
    cross_entropy(model(batch.inputs), batch.targets).mean().backward();
    optimizer.step();
    probes.updated(optimizer);
  });
  for (const auto& rank : trace.ranks) {
    EXPECT_THAT(all<trace::Model>(rank), SizeIs(1));
    EXPECT_THAT(all<trace::Update>(rank), SizeIs(1));
    EXPECT_THAT(all<trace::Samples>(rank), SizeIs(0));
    EXPECT_THAT(all<trace::Group>(rank), SizeIs(3)) << "groups are told all the same";
  }
}

// Has the calling thread stop at its next operator until it is let go.
class Gate {
 public:
  // Returns once the other thread has come.
  void wait_until_reached() { reached_.get_future().wait(); }
  void open() { opened_.set_value(); }
  void come() {
    if (std::exchange(came_, true)) return;
    reached_.set_value();
    opened_.get_future().wait();
  }

 private:
  bool came_ = false;
  std::promise<void> reached_, opened_;
};

// What takes long is worked out outside of the lock.
class AnotherThread : public ::testing::Test {
 protected:
  // Whether this thread's event is taken while `slow` runs in another one, from `wait_until_reached` to `open`.
  bool is_heard_meanwhile(const std::function<void()>& slow,
                          const std::function<void()>& wait_until_reached,
                          const std::function<void()>& open) {
    auto other = std::async(std::launch::async, slow);
    wait_until_reached();
    auto event = std::async(std::launch::async, [this] { recorder_.set_epoch(7); });
    const bool heard = event.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
    open();
    other.get();
    event.get();
    return heard;
  }
  trace::ParticipantTrace recorded() const { return trace::read(folder_.path()).ranks[0]; }

  TemporaryFolder folder_{"lockstep-recorder"};
  record::Recorder recorder_{
      std::make_shared<trace::Writer>(folder_.path(), trace::Participant{.world_size = 1})};
};

// A sharded optimizer sends what it has moved before its update has ended.
TEST(Recorder, CallsInsideOfAnUpdateSayNothingOfTheOneBefore) {
  const TemporaryFolder folder("lockstep-recorder");
  const trace::Collective sends{.op = "broadcast", .sizes = {6}};
  torch::nn::Linear net(3, 2);
  SGD optimizer(net->parameters(), 0.1);
  {
    record::Recorder recorder(
        std::make_shared<trace::Writer>(folder.path(), trace::Participant{.world_size = 1}));
    recorder.optimizer_made(optimizer);
    for (int step = 0; step < 8; ++step) {
      recorder.update_begins(optimizer);
      recorder.collective_begins(sends, net->weight);
      recorder.update_ended(optimizer);
      if (step == 5) recorder.collective_begins(sends, net->weight);
    }
    recorder.update_shadowed();
  }
  std::vector<std::int64_t> steps;
  for (const auto& at : trace::read(folder.path()).ranks[0].all<trace::Parameters>())
    steps.push_back(at.step);
  EXPECT_THAT(steps, ElementsAre(-1, 0, 1, 2, 3, 4, 5));
}

TEST_F(AnotherThread, IsHeardWhileACheckpointsFileIsHashed) {
  const auto file = folder_.path() / "checkpoint.pt";
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  int writing = -1;
  const auto wait_until_read = [&] { writing = open(file.c_str(), O_WRONLY | O_CLOEXEC); };
  const auto end_file = [&] { ::close(writing); };
  EXPECT_TRUE(is_heard_meanwhile(
      [&] {
        recorder_.saved(file, {"model", "optimizer"});
      },
      wait_until_read, end_file));
  EXPECT_TRUE(is_heard_meanwhile([&] { recorder_.loaded(file, {"cpu"}, {"cpu"}, {"weight"}); },
                                 wait_until_read, end_file));
  const auto files = all<trace::CheckpointFile>(recorded());
  ASSERT_THAT(files, SizeIs(2));
  EXPECT_EQ(files[0].action, "save_end");
  EXPECT_THAT(files[0].keys, ElementsAre("model", "optimizer"));
  EXPECT_EQ(files[1].action, "load");
  EXPECT_THAT(files[1].keys, ElementsAre("weight"));
}

TEST_F(AnotherThread, IsHeardWhileATrainingStateIsHashed) {
  static thread_local Gate* here = nullptr;
  Gate gate;
  const auto callback =
      at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction&) {
        if (here != nullptr) here->come();
        return std::unique_ptr<at::ObserverContext>();
      }));
  const auto state = at::ones({2, 3}).t();  // is copied to be hashed
  const auto slow = [&] {
    here = &gate;
    recorder_.training_state("saved", {{"model", state}});
    here = nullptr;
  };
  EXPECT_TRUE(is_heard_meanwhile(
      slow, [&] { gate.wait_until_reached(); }, [&] { gate.open(); }));
  at::removeCallback(callback);
  const auto states = all<trace::TrainingState>(recorded());
  ASSERT_THAT(states, SizeIs(1));
  EXPECT_EQ(states[0].moment, "saved");
  EXPECT_THAT(states[0].names, ElementsAre("model"));
}

// With nobody listening nothing is kept, and nothing is told.
TEST(Recorder, EndsWithItsGroups) {
  record(training());
  EXPECT_THAT(observers(), SizeIs(0));
}

}  // namespace
}  // namespace lockstep::test
