// Probes: what they write, when, and that training does not notice them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/record/settings.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "recorded_job.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;

template <class T>
std::vector<std::int64_t> steps_of(const trace::ParticipantTrace& trace) {
  std::vector<std::int64_t> steps;
  for (const auto& at : trace.all<T>()) steps.push_back(at.step);
  return steps;
}

auto probes_into(const RecordJob& job, const record::ProbeOptions& options = {}) {
  return [&job, options](int rank) {
    return std::make_unique<record::Probes>(job.writer(rank), options);
  };
}

TEST(RecordProbes, ValuesAreSampledAndNothingChanges) {
  const auto plain = train_ddp({.world_size = 2}, 130,
                               [](int) { return std::make_unique<record::Probes>(nullptr); });
  RecordJob job(2);
  const auto probed = train_ddp(job.options, 130, probes_into(job));
  EXPECT_TRUE(identical(plain.values, probed.values));

  for (int rank = 0; rank < 2; ++rank) {
    const auto trace = job.trace_of(rank);
    const auto sampled = ElementsAre(0, 1, 2, 3, 4, 8, 16, 32, 64, 128);
    EXPECT_THAT(steps_of<trace::LocalGradients>(trace), sampled);
    EXPECT_THAT(steps_of<trace::ReducedGradients>(trace), sampled);
    EXPECT_THAT(steps_of<trace::Loss>(trace), sampled);
    EXPECT_THAT(steps_of<trace::Parameters>(trace),
                ElementsAre(-1, 0, 1, 2, 3, 4, 8, 16, 32, 64, 128, 129));  // at the end, too
    EXPECT_EQ(steps_of<trace::Samples>(trace).size(), 130u);
    EXPECT_EQ(steps_of<trace::Update>(trace).size(), 130u);
    EXPECT_EQ(steps_of<trace::Model>(trace).size(), 1u);
    EXPECT_EQ(trace.all<trace::Update>()[5].event->lr, std::vector<double>{0.05});
    EXPECT_EQ(trace.all<trace::LocalGradients>()[1].event->samples, 8);
  }
}

TEST(RecordProbes, AStretchIsSampledBesideTheUsualSteps) {
  RecordJob job(1);
  train_ddp(job.options, 70, probes_into(job, {.also = {.every = 5, .from = 40, .to = 50}}));
  EXPECT_THAT(steps_of<trace::LocalGradients>(job.trace_of(0)),
              ElementsAre(0, 1, 2, 3, 4, 8, 16, 32, 40, 45, 50, 64));
}

class StretchFromEnvironment : public ::testing::Test {
 protected:
  static void set(const char* every, const char* from, const char* to) {
    setenv("LOCKSTEP_EVERY", every, 1);
    setenv("LOCKSTEP_FROM", from, 1);
    setenv("LOCKSTEP_TO", to, 1);
  }
  void TearDown() override { set("", "", ""); }
};

TEST_F(StretchFromEnvironment, IsWhatTheVariablesSay) {
  EXPECT_EQ(record::probe_stretch_from_environment().every, 0);
  set("2", "", "60");
  const auto stretch = record::probe_stretch_from_environment();
  EXPECT_EQ(stretch.every, 2);
  EXPECT_EQ(stretch.from, 0);
  EXPECT_EQ(stretch.to, 60);
}

TEST_F(StretchFromEnvironment, OtherValuesAreRefused) {
  for (const auto& [every, from, to] : std::vector<std::array<const char*, 3>>{{"0", "", ""},
                                                                               {"-1", "", ""},
                                                                               {"x", "", ""},
                                                                               {"1", "-2", ""},
                                                                               {"1", "60", "40"},
                                                                               {"", "3", ""}}) {
    set(every, from, to);
    EXPECT_THROW(record::probe_stretch_from_environment(), UsageError)
        << every << ", " << from << ", " << to;
  }
}

struct OneRank {
  RecordJob job{1};
  Mlp net = seeded(5, [] { return Mlp(4, 6, 3); });
  torch::optim::SGD optimizer{net->parameters(), torch::optim::SGDOptions(0.1)};

  at::Tensor backward() {
    const auto loss = net->forward(inputs_of(0)).square().mean();
    loss.backward();
    return loss;
  }
};

// Nothing that stays is lost between probed steps.
TEST(RecordProbes, TheLastUpdateIsSeenBeforeWhatGoesByIt) {
  OneRank rank;
  {
    record::Probes probes(rank.job.writer(0), {.first = 1, .every = 0});
    probes.attach(*rank.net);
    probes.start();
    const auto update = [&] {
      rank.net->zero_grad();
      rank.backward();
      rank.optimizer.step();
      probes.updated(rank.optimizer);
    };
    update();  // step 0, probed
    probes.pass_end("train", 0, 1);
    update();
    update();  // step 2
    probes.pass_end("evaluate", 0, 1);
    probes.pass_end("train", 0, 1);
    probes.pass_end("train", 0, 1);  // nothing moved
    update();                        // step 3
    probes.forward(true);
    probes.forward(false);
    update();  // step 4
    const TemporaryFolder folder("lockstep-probes");
    probes.checkpoint_file("save_begin", folder.path() / "a.pt", {});
    update();  // step 5
    update();  // step 6
  }
  const auto trace = rank.job.trace_of(0);
  EXPECT_THAT(steps_of<trace::Parameters>(trace), ElementsAre(-1, 0, 2, 3, 4, 6));
  EXPECT_EQ(trace.events.back().step, 6);
}

// The Reducer leaves the mean over ranks of what each rank's backward produced.
// Averages of the parameters, each time in other steps than those whose values are recorded.
TEST(RecordProbes, WhatACollectiveMayChangeIsLookedAtWhereTheNextUpdateBegins) {
  RecordJob job(1);
  record::Probes probes(job.writer(0), {.first = 1, .every = 0});
  torch::nn::Linear model(3, 2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  probes.attach(*model);
  probes.start();
  const trace::Collective mean{.op = "allreduce", .sizes = {6}},
      figure{.op = "allreduce", .sizes = {1}};
  for (int step = 0; step < 12; ++step) {
    probes.collective_begins(step == 11 ? figure : mean);
    const torch::NoGradGuard no_grad;
    if (step == 3) model->weight.add_(1);
    probes.gradients_ready();
    model->weight.add_(1);  // the update
    probes.updated(optimizer);
  }
  std::vector<std::int64_t> steps;
  std::vector<bool> changed;
  const auto trace = job.trace_of(0);
  for (const auto& at : trace.all<trace::BeforeUpdate>()) {
    steps.push_back(at.step);
    changed.push_back(at.event->changed);
    EXPECT_EQ(at.event->values.size(), at.event->changed ? 2u : 0u);
  }
  // Three times, then at growing distances.
  EXPECT_THAT(steps, ElementsAre(0, 1, 2, 3, 4, 5, 9));
  EXPECT_THAT(changed, ElementsAre(false, false, false, true, false, false, false));
  EXPECT_THAT(steps_of<trace::Parameters>(trace), ElementsAre(-1, 0, 1, 2, 3, 4, 8));
}

TEST(RecordProbes, TheMeanOfTheLocalSketchesIsTheReducedOne) {
  constexpr int kRanks = 3;
  RecordJob job(kRanks);
  train_ddp(job.options, 4, probes_into(job));
  std::vector<trace::ParticipantTrace> traces;
  for (int rank = 0; rank < kRanks; ++rank) traces.push_back(job.trace_of(rank));
  for (std::size_t step = 0; step < 4; ++step)
    for (std::size_t parameter = 0; parameter < 4; ++parameter) {
      std::vector<double> mean(trace::kSketch, 0.0);
      for (const auto& trace : traces) {
        const auto local = trace.all<trace::LocalGradients>()[step].event->values[parameter];
        for (std::size_t p = 0; p < mean.size(); ++p) mean[p] += local.sketch.at(p) / kRanks;
      }
      for (const auto& trace : traces) {
        const auto reduced = trace.all<trace::ReducedGradients>()[step].event->values[parameter];
        ASSERT_GT(reduced.norm, 0);
        for (std::size_t p = 0; p < mean.size(); ++p)
          EXPECT_NEAR(reduced.sketch[p], mean[p], 1e-6 * reduced.norm) << step << " " << parameter;
      }
      // Local ones differ from rank to rank: a sketch of the reduced gradient would not.
      EXPECT_NE(traces[0].all<trace::LocalGradients>()[step].event->values[parameter].hash,
                traces[1].all<trace::LocalGradients>()[step].event->values[parameter].hash);
    }
}

TEST(RecordProbes, AttachingTwiceDoesNotCountTwice) {
  OneRank rank;
  record::Probes probes(rank.job.writer(0));
  probes.attach(*rank.net);
  probes.attach(*rank.net);
  probes.start();
  rank.backward();
  probes.gradients_ready();
  const auto trace = rank.job.trace_of(0);
  const auto local = trace.all<trace::LocalGradients>().at(0).event->values;
  const auto left = trace.all<trace::ReducedGradients>().at(0).event->values;
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(local[i].hash, left[i].hash);
    EXPECT_GT(local[i].norm, 0);
  }
  EXPECT_EQ(trace.all<trace::Model>().size(), 1u);
  EXPECT_THAT(trace.all<trace::Model>()[0].event->dtypes, ::testing::Each("float32"));
}

TEST(RecordProbes, AnAttachedModuleIsLetGo) {
  OneRank rank, other;
  record::Probes probes(rank.job.writer(0));
  probes.attach(*rank.net);
  probes.attach(*other.net);
  probes.start();
  rank.backward();  // of a module that is no longer watched
  probes.gradients_ready();
  const auto trace = rank.job.trace_of(0);
  for (const auto& value : trace.all<trace::LocalGradients>().at(0).event->values)
    EXPECT_TRUE(value.sketch.empty());
}

TEST(RecordProbes, BackwardsOfOneUpdateAreSummedAndTheNextStartsAnew) {
  OneRank rank;
  record::Probes probes(rank.job.writer(0));
  probes.attach(*rank.net);
  probes.start();
  for (int step = 0; step < 2; ++step) {
    rank.net->zero_grad();
    for (int part = 0; part < 3; ++part) {
      const auto each = rank.net->forward(inputs_of(part)).square().mean(1);
      probes.loss(each.mean(), each);  // 8 samples, and no Samples event
      each.mean().backward();
    }
    probes.gradients_ready();
    rank.optimizer.step();
    probes.updated(rank.optimizer);
  }
  const auto trace = rank.job.trace_of(0);
  for (std::size_t step = 0; step < 2; ++step) {
    const auto& local = *trace.all<trace::LocalGradients>().at(step).event;
    const auto& reduced = *trace.all<trace::ReducedGradients>().at(step).event;
    EXPECT_EQ(local.samples, 24);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(local.values[i].hash, reduced.values[i].hash);
  }
}

// It reaches no parameter's .grad.
TEST(RecordProbes, AGradientThatTheProgramAsksForIsNotCounted) {
  OneRank rank;
  record::Probes probes(rank.job.writer(0));
  probes.attach(*rank.net);
  probes.start();
  const auto loss = rank.backward();
  const auto parameters = rank.net->parameters();
  torch::autograd::grad({rank.net->forward(inputs_of(1)).sum()}, parameters);
  rank.net->forward(inputs_of(2)).sum().backward({}, false, false, {{parameters[0]}});
  probes.loss(loss, loss.reshape(-1));
  probes.gradients_ready();
  rank.optimizer.step();
  probes.updated(rank.optimizer);
  const auto trace = rank.job.trace_of(0);
  const auto& local = trace.all<trace::LocalGradients>().at(0).event->values;
  const auto& reduced = trace.all<trace::ReducedGradients>().at(0).event->values;
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(local[i].hash, reduced[i].hash) << i;
}

// As where nobody tells the updates: each backward would cost what a probed one does, for as long as the job runs.
TEST(RecordProbes, AStepOfVeryManyBackwardsIsNotLookedAt) {
  OneRank rank;
  record::Probes probes(rank.job.writer(0));
  probes.attach(*rank.net);
  probes.start();
  for (int part = 0; part < 300; ++part) {
    probes.backward();
    EXPECT_EQ(probes.looks_at_gradients(), part < 256) << part;
    rank.backward();
  }
  probes.gradients_ready();
  rank.optimizer.step();
  probes.updated(rank.optimizer);
  EXPECT_TRUE(probes.looks_at_gradients());
  probes.flush();
  const auto trace = rank.job.trace_of(0);
  EXPECT_TRUE(trace.all<trace::LocalGradients>().empty());
  EXPECT_EQ(trace.all<trace::Parameters>().size(), 2u);
}

TEST(RecordProbes, WhatTheProgramLetsGoIsNotKeptOutsideTheModel) {
  OneRank rank;
  record::Probes probes(rank.job.writer(0));
  probes.attach(*rank.net);
  auto kept = torch::ones({2}), gone = torch::ones({2});
  const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> weak(
      gone.getIntrusivePtr());
  probes.outside("teacher", "kept", kept);
  probes.outside("teacher", "gone", gone);
  probes.outside("other", "gone", gone);
  gone.reset();
  EXPECT_TRUE(weak.expired());
  probes.start();
  const auto trace = rank.job.trace_of(0);
  const auto told = trace.all<trace::OutsideParameters>();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_THAT(told[0].event->names, ::testing::ElementsAre("kept"));
}

TEST(RecordProbes, OfQuantizedNumbersTheWholeOnesAreSketched) {
  const auto quantized = at::quantize_per_tensor(torch::ones({4}), 0.5, 0, at::kQInt8);
  EXPECT_EQ(record::summarize(quantized).norm, 4);  // 2 each
}

// As a GAN's judge has gradients of its generator's backward, which it clears before its own.
TEST(RecordProbes, WhatIsClearedBeforeAnotherBackwardIsNotCounted) {
  for (const bool cleared : {true, false}) {
    OneRank rank;
    record::Probes probes(rank.job.writer(0));
    probes.attach(*rank.net);
    probes.start();
    rank.net->forward(inputs_of(0)).square().mean().backward();
    probes.zero_grad("module");
    if (cleared) rank.net->zero_grad();  // or else it clears another model's
    for (int part = 1; part < 3; ++part)
      rank.net->forward(inputs_of(part)).square().mean().backward();
    probes.gradients_ready();
    const auto trace = rank.job.trace_of(0);
    const auto& local = trace.all<trace::LocalGradients>().at(0).event->values;
    const auto& reduced = trace.all<trace::ReducedGradients>().at(0).event->values;
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(local[i].hash, reduced[i].hash) << cleared;
    EXPECT_EQ(trace.all<trace::GradientCleared>().size(), cleared ? 4 : 0);
  }
}

TEST(RecordProbes, WhatIsClearedBeforeTheUpdateIsStillWhatBackwardProduced) {
  OneRank rank;
  record::Probes probes(rank.job.writer(0));
  probes.attach(*rank.net);
  probes.start();
  rank.net->forward(inputs_of(0)).square().mean().backward();
  probes.zero_grad("module");
  rank.net->zero_grad();
  probes.gradients_ready();
  const auto trace = rank.job.trace_of(0);
  EXPECT_GT(trace.all<trace::LocalGradients>().at(0).event->values[0].norm, 0);
  EXPECT_TRUE(trace.all<trace::ReducedGradients>().at(0).event->values[0].sketch.empty());
}

// Not even a writer's absence is noticed: the calls are the same.
TEST(RecordProbes, WithoutAWriterEveryCallDoesNothing) {
  OneRank rank;
  record::Probes probes(nullptr);
  probes.intent({});
  probes.attach(*rank.net);
  probes.engine("distributed_data_parallel");
  probes.start();
  probes.dataset("train", at::Tensor(), at::Tensor(), {1, 2}, 2);
  probes.set_epoch(0);
  probes.pass_begin("train", 0);
  probes.samples("train", {1, 2});
  probes.forward(true);
  probes.sync_gradients(false);
  probes.zero_grad("module");
  probes.loss(at::Tensor(), at::Tensor());
  rank.backward();
  probes.gradients_ready();
  probes.updated(rank.optimizer);
  probes.split(2, {1, 1});
  probes.transfer(0, 1, 8, "input");
  probes.metric("loss", "train", 1, 2);
  probes.average("mean", at::Tensor(), 1, at::Tensor());
  probes.pass_end("train", 0, 1);
  EXPECT_TRUE(rank.job.trace_of(0).events.empty());
}

// A layer that passes its input on and gives it no gradient.
struct NoGradient : torch::autograd::Function<NoGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& input) {
    return input.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    return {at::Tensor()};
  }
};

TEST(RecordProbes, AParameterThatGetsNoGradientHasNone) {
  OneRank rank;
  record::Probes probes(rank.job.writer(0));
  probes.attach(*rank.net);
  probes.start();
  const auto bias = NoGradient::apply(rank.net->fc1->bias);
  torch::nn::functional::linear(inputs_of(0), rank.net->fc1->weight, bias).sum().backward();
  probes.gradients_ready();
  const auto trace = rank.job.trace_of(0);
  const auto& local = trace.all<trace::LocalGradients>().at(0).event->values;
  EXPECT_GT(local[0].norm, 0);           // fc1.weight
  EXPECT_TRUE(local[1].sketch.empty());  // fc1.bias
}

// One event for each parameter and backward, in the order of arrival, on sampled steps only.
TEST(RecordProbes, GradientsAreToldAsTheyArrive) {
  OneRank rank;
  record::Probes probes(rank.job.writer(0), {.first = 1, .every = 0});
  probes.attach(*rank.net);
  probes.start();
  const auto arrived = [&] {
    std::vector<std::int64_t> parameters;
    const auto trace = rank.job.trace_of(0);
    for (const auto& at : trace.all<trace::GradientArrived>())
      parameters.push_back(at.event->parameter);
    return parameters;
  };
  rank.backward();
  EXPECT_THAT(arrived(), ::testing::UnorderedElementsAre(0, 1, 2, 3));
  (rank.net->fc2->bias * torch::ones({3})).sum().backward();
  EXPECT_EQ(arrived().size(), 5u);
  EXPECT_EQ(arrived().back(), 3);
  rank.optimizer.step();
  probes.updated(rank.optimizer);
  rank.backward();
  EXPECT_EQ(arrived().size(), 5u);
}

TEST(RecordProbes, ClearingTellsHowManyGradientsAreViews) {
  RecordJob job(2);
  run_thread_ranks(job.options, [&](ProcessGroupPtr group) {
    for (const bool views : {false, true}) {
      auto net = seeded(5, [] { return Mlp(4, 6, 3); });
      record::Probes probes(job.writer(group->getRank()));
      probes.attach(*net);
      auto model = DistributedDataParallel(net, group, {.gradient_as_bucket_view = views});
      probes.zero_grad("optimizer");  // there is none yet
      model(inputs_of(group->getRank())).square().mean().backward();
      probes.zero_grad("module");
    }
  });
  const auto trace = job.trace_of(0);
  const auto calls = trace.all<trace::ZeroGrad>();
  ASSERT_EQ(calls.size(), 4u);
  EXPECT_EQ(calls[0].event->gradients, 0);
  EXPECT_EQ(calls[0].event->by, "optimizer");
  EXPECT_EQ(calls[1].event->gradients, 4);
  EXPECT_EQ(calls[1].event->views, 0);
  EXPECT_EQ(calls[3].event->gradients, 4);
  EXPECT_EQ(calls[3].event->views, 4);
}

// 8 threads run backward on one module, as a program with several losses may.
TEST(RecordProbes, BackwardsOnSeveralThreadsAreAllCounted) {
  constexpr int kThreads = 8;
  OneRank rank;
  record::Probes probes(rank.job.writer(0));
  probes.attach(*rank.net);
  probes.start();
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      for (int j = 0; j < 25; ++j) (rank.net->fc2->bias * torch::ones({3})).sum().backward();
    });
  for (auto& thread : threads) thread.join();
  probes.gradients_ready();
  const auto trace = rank.job.trace_of(0);
  const auto& local = trace.all<trace::LocalGradients>().at(0).event->values;
  EXPECT_DOUBLE_EQ(local[3].norm, kThreads * 25 * std::sqrt(3.0));  // small integers: exact
  EXPECT_EQ(local[3].hash, trace.all<trace::ReducedGradients>().at(0).event->values[3].hash);
}

TEST(RecordProbes, AnotherModelOfTheSameNamesIsRecorded) {
  OneRank rank;
  auto wider = seeded(5, [] { return Mlp(4, 7, 3); });
  record::Probes probes(rank.job.writer(0));
  probes.attach(*rank.net);
  probes.attach(*wider);
  const auto trace = rank.job.trace_of(0);
  ASSERT_EQ(trace.all<trace::Model>().size(), 2u);
  EXPECT_THAT(trace.all<trace::Model>()[1].event->shapes.at(0), ElementsAre(7, 4));
}

TEST(RecordProbes, BuffersAndFrozenParameters) {
  RecordJob job(1);
  auto net = seeded(5, [] { return ConvNet(10); });
  net->conv1->weight.requires_grad_(false);
  record::Probes probes(job.writer(0));
  probes.attach(*net);
  probes.start();
  const auto trace = job.trace_of(0);
  const auto& buffers = *trace.all<trace::Buffers>().at(0).event;
  EXPECT_THAT(buffers.names, ::testing::Contains("bn1.num_batches_tracked"));
  EXPECT_EQ(buffers.values.size(), buffers.names.size());
  const auto& model = *trace.all<trace::Model>().at(0).event;
  EXPECT_THAT(model.names, ::testing::Not(::testing::Contains("conv1.weight")));
  EXPECT_EQ(trace.all<trace::Parameters>().at(0).event->values.size(), model.names.size());
}

// Those that an evaluation goes by are recorded on any step, once, right before its first forward.
TEST(RecordProbes, BuffersOfAnEvaluationAreAlwaysRecorded) {
  RecordJob job(1);
  auto net = seeded(5, [] { return ConvNet(10); });
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  record::Probes probes(job.writer(0), {.first = 1, .every = 0});
  probes.attach(*net);
  probes.start();
  probes.forward(false);  // nothing has moved since the start
  for (int step = 0; step < 3; ++step) {
    probes.forward(true);
    probes.updated(optimizer);
  }
  net->bn1->running_mean.fill_(0.5);
  for (int batch = 0; batch < 2; ++batch) probes.forward(false);

  const auto trace = job.trace_of(0);
  EXPECT_THAT(steps_of<trace::Buffers>(trace), ElementsAre(-1, 0, 3));
  std::vector<std::string> last;  // Buffers, Forward, Forward
  for (auto event = trace.events.end() - 3; event != trace.events.end(); ++event)
    last.push_back(trace::name_of(event->payload.index()));
  EXPECT_THAT(last, ElementsAre("buffers", "forward", "forward"));
  EXPECT_NE(trace.all<trace::Buffers>()[2].event->values[0].hash,
            trace.all<trace::Buffers>()[1].event->values[0].hash);
}

TEST(RecordProbes, AMeanOverRanksIsTheRanksOwnAndTheOneUsed) {
  OneRank rank;
  record::Probes probes(rank.job.writer(0), {.first = 1, .every = 0});
  probes.attach(*rank.net);
  probes.start();
  const auto own = torch::tensor({3.0f, 4.0f}), used = torch::tensor({1.0f, 2.0f});
  probes.average("mean", own, 8, used);
  probes.average("mean", own, 0, used);  // of no value there is no mean
  probes.updated(rank.optimizer);
  probes.average("mean", own, 8, used);  // a step that is not sampled

  const auto trace = rank.job.trace_of(0);
  const auto averages = trace.all<trace::Average>();
  ASSERT_EQ(averages.size(), 2u);
  EXPECT_EQ(averages[0].event->count, 8);
  EXPECT_DOUBLE_EQ(averages[0].event->own.norm, 5);
  EXPECT_EQ(averages[0].event->used.hash, record::summarize(used).hash);
  EXPECT_TRUE(averages[1].event->own.sketch.empty());
}

TEST(RecordProbes, AProgramOutlivesItsProbes) {
  OneRank rank;
  { record::Probes(rank.job.writer(0)).attach(*rank.net); }
  EXPECT_NO_THROW(rank.backward());
}

TEST(RecordProbes, LayersThatKeepStatisticsSayTheirModeAndTheirPlaces) {
  torch::nn::Sequential net(torch::nn::Linear(4, 3), torch::nn::BatchNorm1d(3),
                            torch::nn::BatchNorm1d(3),
                            torch::nn::LayerNorm(std::vector<std::int64_t>{3}));
  net[2]->eval();
  for (auto& parameter : net[0]->parameters()) parameter.requires_grad_(false);
  const auto modes = record::modes_of(*net);
  EXPECT_EQ(modes, (trace::LayerModes{{{0, 0, true}, {3, 2, false}}}));
}

}  // namespace
}  // namespace lockstep::test
