// What a recorded job keeps beside its model, saves and goes on with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/model_state.h>
#include <lockstep/checkpoint/optimizer_state.h>
#include <lockstep/checkpoint/save_on_rank_zero.h>
#include <lockstep/record/recorder.h>
#include <lockstep/trace/attempts.h>
#include <lockstep/train/adam.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

#include <algorithm>
#include <optional>

#include "recorded.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// It took the model's state, and no optimizer has it.
Job keeping_an_average(bool on_one_rank) {
  return [on_one_rank](const ProcessGroupPtr& group, const TensorData& data) {
    auto net = seeded(3, [] { return Mlp(12, 24, 4); });
    auto average = seeded(4, [] { return Mlp(12, 24, 4); });  // the ranks share a generator
    load_state_dict(*average, state_dict(*net));
    DistributedDataParallel<Mlp> model(net, group);
    SGD optimizer(model.parameters(), 0.05);
    auto sampler = sampler_of(group);
    while (const auto ids = sampler.next(kBatch)) {
      step_on(*ids, model, optimizer, data);
      if (on_one_rank && group->getRank() != 0) continue;
      const torch::NoGradGuard no_grad;
      const auto to = average->parameters(), from = net->parameters();
      for (std::size_t i = 0; i < to.size(); ++i) to[i].lerp_(from[i], 0.5);
    }
  };
}

TEST(RecorderState, AnAverageOfWeightsThatOneRankKeepsIsSeen) {
  EXPECT_THAT(names_of(diagnose::diagnose(record(keeping_an_average(false)))), SizeIs(0));
  const auto found = diagnose::diagnose(record(keeping_an_average(true))).findings;
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].pitfall, "outside-parameters-differ");
  EXPECT_EQ(found[0].severity, diagnose::Severity::advice);
  EXPECT_THAT(found[0].evidence, ::testing::HasSubstr("of Mlp, which no optimizer holds"));
}

Value copy_of(const Value& state) {
  Value::Dict copy;
  for (const auto& [name, value] : state.as_dict()) copy[name] = value.as_tensor().clone();
  return copy;
}

// As one keeps the best weights; without a copy they move with the model.
Job restoring(bool copies) {
  return [copies](const ProcessGroupPtr& group, const TensorData& data) {
    auto net = seeded(3, [] { return Mlp(12, 24, 4); });
    DistributedDataParallel<Mlp> model(net, group);
    SGD optimizer(model.parameters(), 0.05);
    auto sampler = sampler_of(group);
    Value best;
    while (const auto ids = sampler.next(kBatch)) {
      step_on(*ids, model, optimizer, data);
      if (best.is_none()) best = copies ? copy_of(state_dict(*net)) : state_dict(*net);
    }
    load_state_dict(*net, best);
  };
}

TEST(RecorderState, WeightsThatWereKeptWithoutACopyAreTold) {
  EXPECT_THAT(names_of(diagnose::diagnose(record(restoring(true)))), SizeIs(0));
  const auto found = diagnose::diagnose(record(restoring(false))).findings;
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].pitfall, "loaded-its-own-weights");
  EXPECT_EQ(found[0].step, 3);
  EXPECT_EQ(found[0].evidence.rfind("Mlp was given", 0), 0u) << found[0].evidence;
}

struct Restored {
  bool moments = true, moments_on_rank_1 = true, place = true;
};

// Two epochs of three batches. It stops in the first one, and a second start goes on from there.
trace::Trace started_twice(const Restored& restored) {
  const TemporaryFolder folder("lockstep-resumed");
  const auto file = folder.path() / "checkpoint.pt";
  const auto start = [&](const ProcessGroupPtr& group, const TensorData& data) {
    const bool goes_on = std::filesystem::exists(file);
    auto net = seeded(3, [] { return Mlp(12, 24, 4); });
    Adam optimizer(net->parameters(), AdamOptions(1e-3));
    auto sampler = sampler_of(group);
    if (goes_on) {
      const auto state = load_checkpoint(file).value;
      load_state_dict(*net, state.at("model"));
      const bool takes = restored.moments && (restored.moments_on_rank_1 || group->getRank() == 0);
      if (takes) load_state_dict(optimizer, state.at("optimizer"));
      if (restored.place) sampler.load_state_dict(state.at("sampler"));
    }
    barrier(*group);  // both have asked whether there is a file
    DistributedDataParallel<Mlp> model(net, group);
    const std::int64_t steps = goes_on ? 4 : 2;
    std::int64_t done = 0;
    for (std::int64_t epoch = 0; epoch < 2 && done < steps; ++epoch) {
      sampler.set_epoch(epoch);
      sampler.reset();
      while (const auto ids = sampler.next(kBatch)) {
        step_on(*ids, model, optimizer, data);
        if (++done == steps) break;
      }
    }
    if (!goes_on)
      save_on_rank_zero(*group, [&] {
        save_checkpoint(file, Value::Dict{{"model", state_dict(*net)},
                                          {"optimizer", state_dict(optimizer)},
                                          {"sampler", sampler.state_dict()}});
      });
  };
  std::vector<trace::Trace> attempts;
  attempts.push_back(record(start));
  attempts.push_back(record(start));
  return trace::concatenate(std::move(attempts));
}

TEST(RecorderState, OfAJobThatGoesOnRightIsTheSavedOne) {
  const auto trace = started_twice({});
  EXPECT_THAT(names_of(diagnose::diagnose(trace)), SizeIs(0));
  const auto states = all<trace::TrainingState>(trace.ranks[0]);
  ASSERT_THAT(states, SizeIs(2));
  EXPECT_THAT(states[0].names, ElementsAre("model", "optimizer"));
  EXPECT_EQ(states[0].moment, "saved");
  EXPECT_EQ(states[1].moment, "resumed");
  EXPECT_EQ(states[0].hashes, states[1].hashes);
}

TEST(RecorderState, ThatIsLostIsNamed) {
  EXPECT_THAT(names_of(diagnose::diagnose(started_twice({.moments = false}))),
              ElementsAre("optimizer-state-missing"));
  EXPECT_THAT(names_of(diagnose::diagnose(started_twice({.place = false}))),
              ElementsAre("resume-mid-epoch-replays"));
  const auto found = diagnose::diagnose(started_twice({.moments_on_rank_1 = false})).findings;
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].pitfall, "optimizer-state-missing");
  EXPECT_THAT(found[0].ranks, ElementsAre(1));
}

// Without an engine, and with a rule of the program's own.
Job by_hand(double factor_on_rank_1) {
  return [=](const ProcessGroupPtr& group, const TensorData& data) {
    auto net = seeded(3, [] { return Mlp(12, 24, 4); });
    auto sampler = sampler_of(group);
    while (const auto ids = sampler.next(kBatch)) {
      const auto rows = at::tensor(std::vector<std::int64_t>(ids->begin(), ids->end()));
      torch::cross_entropy_loss(net->forward(data.inputs.index_select(0, rows)),
                                data.targets.index_select(0, rows))
          .backward();
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net->parameters()) {
        auto gradient = parameter.grad();
        all_reduce(*group, gradient);
        parameter.sub_(gradient, 0.05 * (group->getRank() == 1 ? factor_on_rank_1 : 1));
        gradient.zero_();
      }
    }
  };
}

TEST(RecorderState, OfUpdatesThatNobodyTellsIsWhatTheyChange) {
  const auto right = record(by_hand(1));
  EXPECT_THAT(names_of(diagnose::diagnose(right)), SizeIs(0));
  for (const auto& rank : right.ranks) {
    EXPECT_THAT(rank.all<trace::Update>(), SizeIs(3));
    ASSERT_THAT(rank.all<trace::Model>(), SizeIs(1));
    EXPECT_THAT(rank.all<trace::Model>()[0].event->shapes, SizeIs(4));
    const auto parameters = rank.all<trace::Parameters>();
    ASSERT_THAT(parameters, SizeIs(4));
    EXPECT_EQ(parameters[0].step, -1);
    EXPECT_EQ(parameters[3].step, 2);
    EXPECT_THAT(rank.all<trace::Samples>(), SizeIs(0)) << "nothing says which batch a step is of";
  }
  const auto found = diagnose::diagnose(record(by_hand(0.3))).findings;
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].pitfall, "replicas-diverged");
  EXPECT_EQ(found[0].severity, diagnose::Severity::advice) << "they may be averaged unseen";
}

TEST(RecorderState, UnderAnOptimizerThatDoesNotTellGoesByTheParameters) {
  const auto trace = record([](const ProcessGroupPtr& group, const TensorData& data) {
    auto net = seeded(3, [] { return Mlp(12, 24, 4); });
    DistributedDataParallel<Mlp> model(net, group);
    torch::optim::SGD optimizer(model.parameters(), 0.05);
    auto sampler = sampler_of(group);
    while (const auto ids = sampler.next(kBatch)) step_on(*ids, model, optimizer, data);
  });
  EXPECT_THAT(names_of(diagnose::diagnose(trace)), SizeIs(0));
  const auto samples = trace.ranks[0].all<trace::Samples>();
  ASSERT_THAT(samples, SizeIs(3));
  for (std::size_t step = 0; step < 3; ++step)
    EXPECT_EQ(samples[step].step, static_cast<std::int64_t>(step));
  EXPECT_THAT(trace.ranks[0].all<trace::Update>(), SizeIs(3));
}

// As a GAN trains: the first model that an engine wraps is given noise, and the data go into the second.
TEST(RecorderState, OfASecondWrappedModelIsWhatItWasGiven) {
  const auto trace = record([](const ProcessGroupPtr& group, const TensorData& data) {
    auto maker = seeded(3, [] { return Mlp(12, 24, 12); });
    auto judge = seeded(4, [] { return Mlp(12, 24, 1); });
    DistributedDataParallel<Mlp> generator(maker, group);
    DistributedDataParallel<Mlp> critic(judge, group);
    SGD of_generator(generator.parameters(), 0.05), of_critic(critic.parameters(), 0.05);
    torch::manual_seed(7 + group->getRank());
    for (std::int64_t step = 0; step < 3; ++step) {
      const auto real = data.inputs.slice(0, step * kBatch, (step + 1) * kBatch);  // on each rank
      of_critic.zero_grad();
      const auto of_made =
          critic(generator(torch::randn({kBatch, 12})).detach());  // it comes first
      (of_made - critic(real)).mean().backward();
      of_critic.step();
      of_generator.zero_grad();
      (-critic(generator(torch::randn({kBatch, 12})))).mean().backward();
      of_generator.step();
    }
  });
  const auto rows = all<trace::OtherRows>(trace.ranks[0]);
  EXPECT_THAT(rows, SizeIs(9));
  for (const auto& each : rows) EXPECT_EQ(each.module, 1);
  EXPECT_EQ(all<trace::OtherRows>(trace.ranks[1])[1].hashes, rows[1].hashes);
}

// A layer beside the model, which nobody wraps and no optimizer holds, or which a rule of the program's own moves.
TEST(RecorderState, OfALayerThatNobodyTrainsIsTold) {
  std::vector<torch::nn::Linear> layers;  // of the ranks; they outlive the groups
  for (int rank = 0; rank < kRanks; ++rank)
    layers.push_back(seeded(4, [] { return torch::nn::Linear(4, 4); }));
  const auto with_layer = [&](bool moves) {
    return record([&, moves](const ProcessGroupPtr& group, const TensorData& data) {
      auto net = seeded(3, [] { return Mlp(12, 24, 4); });
      auto layer = layers[static_cast<std::size_t>(group->getRank())];
      DistributedDataParallel<Mlp> model(net, group);
      SGD optimizer(model.parameters(), 0.05);
      for (std::int64_t step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        const auto rows = at::arange(group->getRank(), kSamples, kRanks);
        torch::cross_entropy_loss(layer(model(data.inputs.index_select(0, rows))),
                                  data.targets.index_select(0, rows))
            .backward();
        optimizer.step();
        const torch::NoGradGuard no_grad;
        if (moves)
          for (auto& parameter : layer->parameters()) parameter.mul_(0.9);
      }
    });
  };
  const auto found = diagnose::diagnose(with_layer(false)).findings;
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].pitfall, "parameters-not-updated");
  EXPECT_THAT(found[0].evidence, ::testing::HasSubstr("[4, 4]"));
  EXPECT_THAT(names_of(diagnose::diagnose(with_layer(true))), SizeIs(0));
}

// As in a loop that adapts a copy of the model: each optimizer has parameters of its own.
TEST(RecorderState, OptimizersThatAreMadeInEachStepAreNotKept) {
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  for (const bool wrapped : {false, true})
    record([&](const ProcessGroupPtr& group, const TensorData& data) {
      auto net = seeded(3, [] { return Mlp(12, 24, 4); });
      std::optional<DistributedDataParallel<Mlp>> model;
      if (wrapped) model.emplace(net, group);
      SGD optimizer(net->parameters(), 0.05);
      std::vector<Weak> fresh;
      for (std::int64_t step = 0; step < 60; ++step) {
        const auto parameter = torch::zeros({2}, torch::requires_grad());
        fresh.emplace_back(parameter.getIntrusivePtr());
        SGD inner(std::vector{parameter}, 0.1);
        parameter.sum().backward();
        inner.step();
        optimizer.zero_grad();
        const auto outputs = wrapped ? (*model)(data.inputs) : net->forward(data.inputs);
        cross_entropy(outputs, data.targets).mean().backward();
        optimizer.step();
      }
      const auto kept = std::count_if(fresh.begin(), fresh.end(),
                                      [](const Weak& each) { return !each.expired(); });
      EXPECT_LE(kept, 1) << wrapped;  // the last
    });
}

}  // namespace
}  // namespace lockstep::test
