// Two simulated runs of which one thing is changed: that is what is said to differ first, at its step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/compare/compare.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../diagnose/job.h"
#include "share_job.h"

namespace lockstep::compare {
namespace {

using simulated::each;

trace::Trace with_every_event(int ranks = 2) {
  simulated::Job job(ranks);
  job.every_event = true;
  auto trace = job.run();
  for (auto& rank : trace.ranks) {
    for (std::int64_t step : {0, 1, 2, 3})
      simulated::record(
          rank, step,
          trace::Buffers{
              {"mean"},
              {simulated::summarize(simulated::Values{1.0 + static_cast<double>(step)})}});
    simulated::record(
        rank, 3, trace::TrainingState{"saved", {"model", "rng_state"}, {1, 2}, {"cpu", "cpu"}});
  }
  return trace;
}

const trace::Summary& another() {
  static const auto summary = simulated::summarize(simulated::Values{1, 2, 3});
  return summary;
}

// The k-th event of a kind that one rank has at a step.
template <class T>
T& at_step(trace::Trace& trace, int rank, std::int64_t step) {
  for (auto& [when, event] : each<T>(trace.ranks.at(static_cast<std::size_t>(rank))))
    if (when == step) return event;
  throw std::logic_error("no such event");
}

// A text without the breaks that fill its lines.
std::string flat(const std::string& text) {
  std::istringstream words(text);
  std::string all;
  for (std::string word; words >> word;) all += (all.empty() ? "" : " ") + word;
  return all;
}

struct Change {
  const char* name;
  Aspect aspect;
  std::int64_t step;
  std::function<void(trace::Trace&)> make;  // to rank 1
};

void change_ids(trace::Trace& trace, bool order_only) {
  auto& samples = at_step<trace::Samples>(trace, 1, 2);
  auto ids = samples.ids.list();
  if (order_only)
    std::swap(ids.front(), ids.back());
  else
    ids.front() = 1000;
  samples.ids = ids;
}

std::vector<Change> changes() {
  return {
      {"Shape", Aspect::configuration, -1,
       [](auto& t) {
         each<trace::Model>(t.ranks[1])[0].second.shapes[0] = {3, 2};
       }},
      {"Content", Aspect::data, -1,
       [](auto& t) { each<trace::Dataset>(t.ranks[1])[0].second.content_as_set = 5; }},
      {"Ids", Aspect::data, 2, [](auto& t) { change_ids(t, false); }},
      {"Order", Aspect::data, 2, [](auto& t) { change_ids(t, true); }},
      {"RandomNumbers", Aspect::random, 1,
       [](auto& t) { at_step<trace::RandomNumbers>(t, 1, 1).hashes[2] = 5; }},
      {"Initial", Aspect::initial, -1,
       [](auto& t) { at_step<trace::Parameters>(t, 1, -1).values[1] = another(); }},
      {"Mode", Aspect::mode, 3, [](auto& t) { at_step<trace::Forward>(t, 1, 3).training = false; }},
      {"Loss", Aspect::loss, 2, [](auto& t) { at_step<trace::Loss>(t, 1, 2).sum *= 1.01; }},
      {"BackwardValue", Aspect::loss, 2,
       [](auto& t) { at_step<trace::Loss>(t, 1, 2).backward_value /= 2; }},
      {"LocalGradient", Aspect::local_gradients, 1,
       [](auto& t) { at_step<trace::LocalGradients>(t, 1, 1).values[0] = another(); }},
      {"NoGradient", Aspect::local_gradients, 1,
       [](auto& t) { at_step<trace::LocalGradients>(t, 1, 1).values[0] = {}; }},
      {"ReducedGradient", Aspect::reduced_gradients, 2,
       [](auto& t) { at_step<trace::ReducedGradients>(t, 1, 2).values[1] = another(); }},
      {"LearningRate", Aspect::hyper_parameters, 5,
       [](auto& t) { at_step<trace::Update>(t, 1, 5).lr = {0.2}; }},
      {"Update", Aspect::update, 3,
       [](auto& t) { at_step<trace::Parameters>(t, 1, 3).values[0] = another(); }},
      {"Buffer", Aspect::buffers, 1,
       [](auto& t) { at_step<trace::Buffers>(t, 1, 1).values[0] = another(); }},
      {"Metric", Aspect::metric, 13, [](auto& t) { at_step<trace::Metric>(t, 1, 13).sum *= 2; }},
      {"Checkpoint", Aspect::checkpoint, 3,
       [](auto& t) { at_step<trace::TrainingState>(t, 1, 3).hashes[0] = 9; }},
      {"RngState", Aspect::checkpoint, 3,
       [](auto& t) { at_step<trace::TrainingState>(t, 1, 3).hashes[1] = 9; }},
  };
}

class OneChange : public testing::TestWithParam<Change> {};
INSTANTIATE_TEST_SUITE_P(Compare, OneChange, testing::ValuesIn(changes()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(OneChange, IsWhatDiffersFirst) {
  const auto a = with_every_event();
  auto b = with_every_event();
  GetParam().make(b);
  const auto found = compare(a, b);
  EXPECT_EQ(found.answer, Answer::different);
  ASSERT_TRUE(found.first);
  EXPECT_STREQ(to_string(*found.first), to_string(GetParam().aspect));
  const auto& first = *found.of(*found.first).first;
  EXPECT_EQ(first.step, GetParam().step);
  EXPECT_EQ(first.ranks, std::vector<int>{1});
  EXPECT_NE(first.a, first.b);
  for (const auto& aspect : found.aspects)
    EXPECT_EQ(aspect.first.has_value(), aspect.aspect == GetParam().aspect);
}

TEST(Compare, TheSameJobTwiceIsEqualToTheBit) {
  const auto a = with_every_event(), b = with_every_event();
  const auto found = compare(a, b);
  EXPECT_EQ(found.answer, Answer::equal);
  EXPECT_FALSE(found.first);
  for (const auto& aspect : found.aspects) {
    EXPECT_EQ(aspect.relation, Relation::equal) << to_string(aspect.aspect);
    EXPECT_FALSE(aspect.steps.empty()) << to_string(aspect.aspect);
  }
}

TEST(Compare, AnEarlierConsequenceIsNoReasonToSayALaterCause) {
  const auto a = with_every_event();
  auto b = with_every_event();
  at_step<trace::Parameters>(b, 1, 1).values[0] = another();
  at_step<trace::Loss>(b, 1, 2).sum *= 2;
  const auto found = compare(a, b);
  EXPECT_EQ(found.first, Aspect::update);
  EXPECT_EQ(found.agree_until, 0);
  EXPECT_EQ(found.of(Aspect::loss).first->step, 2);
}

TEST(Compare, OfOneStepTheCauseComesFirst) {
  const auto a = with_every_event();
  auto b = with_every_event();
  at_step<trace::Parameters>(b, 0, 2).values[0] = another();
  at_step<trace::Loss>(b, 0, 2).sum *= 2;
  EXPECT_EQ(compare(a, b).first, Aspect::loss);
}

TEST(Compare, AllRanksThatDifferAreNamed) {
  const auto a = with_every_event(3);
  auto b = with_every_event(3);
  for (const int rank : {0, 2}) at_step<trace::Update>(b, rank, 1).lr = {0.2};
  const auto found = compare(a, b);
  EXPECT_EQ(found.of(Aspect::hyper_parameters).first->ranks, (std::vector<int>{0, 2}));
}

// A setting is a cause where something follows from it, and a note where nothing does.
TEST(Compare, ASettingIsTheCauseOnlyWhereTheTrainingDiffers) {
  const auto told = [](trace::Trace trace, const char* value) {
    for (auto& rank : trace.ranks)
      simulated::record(rank, -1, trace::Configuration{"engine", {"bucket_bytes_cap"}, {value}});
    return trace;
  };
  const auto a = told(with_every_event(), "1"), b = told(with_every_event(), "2");
  auto found = compare(a, b);
  EXPECT_EQ(found.answer, Answer::equal);
  ASSERT_EQ(found.notes.size(), 1u);
  EXPECT_NE(found.notes[0].find("bucket_bytes_cap"), std::string::npos);

  auto other = b;
  at_step<trace::Loss>(other, 1, 2).sum *= 2;
  found = compare(a, other);
  EXPECT_EQ(found.first, Aspect::configuration);
  EXPECT_EQ(found.of(Aspect::loss).first->step, 2);
}

// As where a layer was replaced after the model was wrapped.
TEST(Compare, ASettingThatChangesIsComparedWithAllItsValues) {
  const auto told = [](std::vector<const char*> values) {
    auto trace = with_every_event();
    for (auto& rank : trace.ranks)
      for (const auto* value : values)
        simulated::record(rank, -1, trace::Configuration{"model", {"1"}, {value}});
    return trace;
  };
  const auto converted = told({"SyncBatchNorm"}), later = told({"BatchNorm1d", "SyncBatchNorm"});
  const auto found = compare(converted, later);
  ASSERT_EQ(found.notes.size(), 1u);
  EXPECT_THAT(
      found.notes[0],
      testing::HasSubstr("model: 1: SyncBatchNorm in A, BatchNorm1d, then SyncBatchNorm in B"));
  EXPECT_THAT(compare(later, told({"BatchNorm1d", "SyncBatchNorm", "BatchNorm1d"})).notes,
              testing::IsEmpty());
}

// And so it stands before all else of its step.
TEST(Compare, WhatIsLoadedIsKnownByTheSaveThatItComesFrom) {
  const auto loads = [](std::uint64_t content) {
    auto trace = with_every_event();
    const auto tell = [](auto& rank, std::int64_t step, const char* action, std::uint64_t bytes) {
      simulated::record(rank, step, trace::CheckpointFile{.action = action, .content = bytes});
    };
    tell(trace.ranks[0], 1, "save_end", content + 50);
    tell(trace.ranks[0], 2, "save_end", content + 60);
    tell(trace.ranks[1], 2, "load", content + 60);
    return trace;
  };
  const auto a = loads(0);
  EXPECT_EQ(compare(a, loads(7)).answer, Answer::equal) << "other bytes at each save";
  auto b = loads(0);
  at_step<trace::CheckpointFile>(b, 1, 2).content = 50;
  at_step<trace::Loss>(b, 1, 2).sum *= 2;
  const auto found = compare(a, b);
  EXPECT_EQ(found.first, Aspect::checkpoint);
  const auto& first = *found.of(Aspect::checkpoint).first;
  EXPECT_EQ(first.step, 2);
  EXPECT_EQ(first.ranks, std::vector<int>{1});
  EXPECT_THAT(first.a, testing::EndsWith("load of what was saved at step 2"));
  EXPECT_THAT(first.b, testing::EndsWith("load of what was saved at step 1"));
}

// Other bytes alone are no difference: rounding makes them.
TEST(Compare, WhatIsSavedIsComparedByItsNames) {
  const auto saves = [](std::vector<std::string> keys) {
    auto trace = with_every_event();
    simulated::record(
        trace.ranks[0], 1,
        trace::CheckpointFile{.action = "save_end", .content = keys.size(), .keys = keys});
    return trace;
  };
  const auto a = saves({"model", "optimizer", "epoch"});
  EXPECT_EQ(compare(a, saves({"epoch", "optimizer", "model"})).answer, Answer::equal);
  EXPECT_EQ(compare(a, saves({})).answer, Answer::equal) << "an older trace, or no dict";
  const auto found = compare(a, saves({"model", "epoch", "lr"}));
  EXPECT_EQ(found.first, Aspect::checkpoint);
  const auto& first = *found.of(Aspect::checkpoint).first;
  EXPECT_EQ(first.step, 1);
  EXPECT_EQ(first.ranks, std::vector<int>{0});
  EXPECT_EQ(first.a, "optimizer");
  EXPECT_EQ(first.b, "lr");
  EXPECT_EQ(compare(saves({"a"}), saves({"a", "b", "c", "d", "e", "f", "g", "h", "i"}))
                .of(Aspect::checkpoint)
                .first->b,
            "b, c, d, e, f, g and 2 more");
}

TEST(Compare, ParametersInAnotherOrderAreComparedByTheirNames) {
  const auto a = with_every_event();
  auto b = a;
  ASSERT_EQ(at_step<trace::Model>(b, 0, -1).names.size(), 2u);
  const auto swap = [](auto& list) {
    if (list.size() == 2) std::swap(list[0], list[1]);
  };
  const auto swap_models = [&] {
    for (auto [step, model] : simulated::each<trace::Model>(b))
      swap(model.names), swap(model.shapes), swap(model.dtypes);
  };
  swap_models();
  for (auto [step, of] : simulated::each<trace::Parameters>(b)) swap(of.values);
  for (auto [step, of] : simulated::each<trace::LocalGradients>(b)) swap(of.values);
  for (auto [step, of] : simulated::each<trace::ReducedGradients>(b)) swap(of.values);
  const auto found = compare(a, b);
  EXPECT_EQ(found.answer, Answer::equal);
  ASSERT_EQ(found.notes.size(), 1u);
  EXPECT_THAT(found.notes[0], testing::HasSubstr("in another order"));
  swap_models();
  EXPECT_EQ(compare(a, b).answer, Answer::different) << "by their places";
}

TEST(Compare, OtherNamesOfParametersAreANote) {
  const auto a = with_every_event();
  auto b = a;
  for (int rank = 0; rank < 2; ++rank) at_step<trace::Model>(b, rank, -1).names[1] = "renamed";
  const auto found = compare(a, b);
  EXPECT_EQ(found.answer, Answer::equal);
  ASSERT_EQ(found.notes.size(), 1u);
  EXPECT_THAT(found.notes[0], testing::HasSubstr("is renamed in B"));
}

// A loss of NaN is told at its own step, whether it is recorded by value or with those of the samples.
TEST(Compare, ALossThatIsNoNumberIsFoundBetweenProbes) {
  const auto a =
      ShareJob{.ranks = 2, .probes = [](std::int64_t step) { return step % 8 == 0; }}.run();
  auto b = a;
  auto told = a;
  for (auto& rank : told.ranks) {
    std::erase_if(rank.events, [](const auto& event) { return event.template is<trace::Loss>(); });
    for (std::int64_t step = 0; step < 40; ++step)
      simulated::record(rank, step, trace::Backward{1});
  }
  at_step<trace::Loss>(b, 1, 11).backward_value = std::nan("");
  const auto found = compare(told, b);
  EXPECT_EQ(found.first, Aspect::loss);
  EXPECT_EQ(found.of(Aspect::loss).first->step, 11);
  EXPECT_EQ(found.of(Aspect::loss).first->ranks, std::vector<int>{1});
}

// A trace's steps have a gap between attempts, and what is loaded in between is no difference.
TEST(Compare, AJobThatWentOnFromACheckpointIsComparedWithOneThatRanThrough) {
  const auto whole = ShareJob{.ranks = 2, .updates = 40}.run();
  auto resumed = whole;
  for (auto& rank : resumed.ranks) {
    const auto second = std::find_if(rank.events.begin(), rank.events.end(),
                                     [](const auto& event) { return event.step >= 20; });
    rank.last_attempt = static_cast<std::size_t>(second - rank.events.begin());
    for (auto event = second; event != rank.events.end(); ++event) event->step += 2;
    rank.events.insert(second, {second->time_ns, 21, trace::CheckpointFile{.action = "load"}});
  }
  auto found = compare(whole, resumed);
  EXPECT_EQ(found.answer, Answer::equal);
  EXPECT_EQ(found.updates_b, 40);
  // With two steps at the beginning that a GradScaler leaves out.
  const auto left_out = [](trace::Trace trace) {
    for (auto& rank : trace.ranks) {
      const auto at = std::find_if(rank.events.begin(), rank.events.end(),
                                   [](const auto& event) { return event.step >= 0; });
      const trace::Event skipped{at->time_ns, 0, trace::ScaledStep{1, true, false}};
      rank.events.insert(at, 2, skipped);
      if (rank.last_attempt > 0) rank.last_attempt += 2;
    }
    return trace;
  };
  found = compare(left_out(whole), left_out(resumed));
  EXPECT_EQ(found.answer, Answer::equal);
  EXPECT_EQ(found.updates_a, 42);
  EXPECT_EQ(found.updates_b, 42);
}

// A call makes other hashes of a state than a job that calls nothing.
TEST(Compare, AStateThatIsToldIsComparedWithOneThatIsTold) {
  const auto with = [](std::vector<std::string> names, std::uint64_t hash) {
    auto trace = with_every_event();
    simulated::record(
        trace.ranks[0], 1,
        trace::TrainingState{"saved", names, std::vector<std::uint64_t>(names.size(), hash),
                             std::vector<std::string>(names.size())});
    return trace;
  };
  EXPECT_EQ(compare(with({"model", "optimizer"}, 1), with({"model", "rng_state"}, 2)).answer,
            Answer::equal);
  EXPECT_EQ(compare(with({"model", "optimizer"}, 1), with({"model"}, 1)).first, Aspect::checkpoint);
  EXPECT_EQ(compare(with({"model", "rng_state"}, 1), with({"model", "rng_state"}, 2)).first,
            Aspect::checkpoint);
}

// What a model in evaluation mode is given is not recorded, what its loss compares with is.
TEST(Compare, WhatAModelIsGivenIsNotComparedWithTargets) {
  const auto with_inputs = [](bool evaluates) {
    auto trace = with_every_event();
    for (auto& rank : trace.ranks)
      for (const std::int64_t step : {0, 1, 2, 3}) {
        const bool told = !evaluates || step < 2;
        if (told) simulated::record(rank, step, trace::Input{.index = 0, .dtype = "float32"});
        simulated::record(rank, step, trace::Input{.index = -1, .dtype = "int64"});
        if (!told) at_step<trace::Forward>(trace, rank.participant.rank, step).training = false;
      }
    return trace;
  };
  const auto found = compare(with_inputs(false), with_inputs(true));
  EXPECT_EQ(found.first, Aspect::mode);
  EXPECT_FALSE(found.of(Aspect::data).first);
}

TEST(Compare, OtherRanksTrainTheSameGlobalBatches) {
  const auto one = ShareJob{}.run();
  for (const int ranks : {2, 4}) {
    const auto other = ShareJob{.ranks = ranks}.run();
    const auto found = compare(one, other);
    EXPECT_EQ(found.answer, Answer::rounding) << ranks;
    EXPECT_EQ(found.of(Aspect::data).steps.size(), 41u);  // and before training
    EXPECT_EQ(found.of(Aspect::local_gradients).steps.size(), 40u);
    EXPECT_EQ(found.of(Aspect::data).relation, Relation::equal);
  }
}

TEST(Compare, OtherRanksWithOtherBatchesDifferInTheData) {
  const auto one = ShareJob{}.run();
  const auto found = compare(one, ShareJob{.ranks = 2, .global_batch = 16}.run());
  EXPECT_EQ(found.first, Aspect::data);
}

TEST(Compare, OtherRanksWithASummedGradientDifferInTheReducedOne) {
  const auto one = ShareJob{}.run();
  auto two = ShareJob{.ranks = 2}.run();
  for (auto& [step, gradients] : each<trace::ReducedGradients>(two))
    for (auto& value : gradients.values) {
      value.norm *= 2, ++value.hash;
      for (auto& projection : value.sketch) projection *= 2;
    }
  const auto found = compare(one, two);
  EXPECT_EQ(found.first, Aspect::reduced_gradients);
  EXPECT_EQ(found.of(Aspect::reduced_gradients).first->step, 0);
}

TEST(Compare, OtherRanksWhoseReplicasAreApartDiffer) {
  const auto one = ShareJob{}.run();
  auto two = ShareJob{.ranks = 2}.run();
  at_step<trace::Parameters>(two, 1, 5).values[0] = another();
  const auto found = compare(one, two);
  EXPECT_EQ(found.first, Aspect::update);
  EXPECT_EQ(found.of(Aspect::update).first->step, 5);
  EXPECT_NE(found.of(Aspect::update).first->what.find("ranks 0 and 1 of B"), std::string::npos);
}

// One unit of rounding in each gradient is noise; a thousand times as much is another training.
TEST(Compare, NoiseOfRoundingIsEqualToRoundingAndMoreIsNot) {
  const auto a = ShareJob{.ranks = 2}.run();
  const auto near = compare(a, ShareJob{.ranks = 2, .noise = 1e-7}.run());
  EXPECT_EQ(near.answer, Answer::rounding);
  EXPECT_FALSE(near.of(Aspect::reduced_gradients).distances.empty());
  const auto far = compare(a, ShareJob{.ranks = 2, .noise = 1e-3}.run());
  EXPECT_EQ(far.answer, Answer::different);
  EXPECT_EQ(far.first, Aspect::local_gradients);
}

// A value that a rounding moves over a ReLU's corner changes one gradient by much, and the parameters by little.
TEST(Compare, OneJumpOfAGradientThatTheParametersDoNotFollowIsRounding) {
  const auto a = ShareJob{.ranks = 2}.run();
  auto b = ShareJob{.ranks = 2, .noise = 1e-7}.run();
  const auto jump = [&](std::int64_t step) {
    auto& value = at_step<trace::LocalGradients>(b, 1, step).values[0];
    for (auto& projection : value.sketch) projection += 0.005 * value.norm;
  };
  jump(16);
  EXPECT_EQ(compare(a, b).answer, Answer::rounding);
  for (std::int64_t step = 17; step < 24; ++step) jump(step);  // of 40: no longer rare
  EXPECT_EQ(compare(a, b).first, Aspect::local_gradients);
}

// What is apart by rounding has another hash: of a checkpoint, which has no more, nothing follows.
TEST(Compare, AHashSaysNothingOnceValuesAreRounded) {
  const auto saved = [](trace::Trace trace, std::uint64_t hash) {
    for (auto& rank : trace.ranks)
      simulated::record(rank, 39, trace::TrainingState{"saved", {"model"}, {hash}, {"cpu"}});
    return trace;
  };
  const auto a = saved(ShareJob{}.run(), 1);
  EXPECT_EQ(compare(a, saved(ShareJob{.noise = 1e-7}.run(), 2)).answer, Answer::rounding);
  EXPECT_EQ(compare(a, saved(ShareJob{}.run(), 2)).first, Aspect::checkpoint);
  const auto faster = compare(a, saved(ShareJob{.lr = 0.02}.run(), 2));
  EXPECT_EQ(faster.first, Aspect::hyper_parameters);
  EXPECT_EQ(faster.of(Aspect::checkpoint).relation, Relation::different);
}

TEST(Compare, ProbesOnDifferentStepsLeaveItUndecided) {
  const auto even = ShareJob{.probes = [](std::int64_t step) { return step % 2 == 0; }}.run();
  const auto odd = ShareJob{.probes = [](std::int64_t step) { return step % 2 == 1; }}.run();
  const auto found = compare(even, odd);
  EXPECT_EQ(found.answer, Answer::undecided);
  EXPECT_TRUE(found.of(Aspect::update).probes_apart());
  const auto text = flat(to_text(found, "A", "B"));
  EXPECT_NE(text.find("0, 2, 4, 6, 8, 10, 12, 14, ... in A only"), std::string::npos) << text;
  EXPECT_NE(text.find("record both runs with the same --every, --from and --to"), std::string::npos)
      << text;
}

TEST(Compare, ProbesThatAreAmongTheOthersDecide) {
  const auto all = ShareJob{}.run();
  const auto some = ShareJob{.probes = [](std::int64_t step) { return step % 8 == 0; }}.run();
  const auto found = compare(all, some);
  EXPECT_EQ(found.answer, Answer::equal);
  EXPECT_EQ(found.of(Aspect::update).steps.size(), 5u);
}

TEST(Compare, TracesWithoutAnyValueLeaveItUndecided) {
  const auto nothing = simulated::empty_trace(2);
  EXPECT_EQ(compare(nothing, nothing).answer, Answer::undecided);
  EXPECT_EQ(compare(ShareJob{.ranks = 2}.run(), nothing).answer, Answer::undecided);
  EXPECT_EQ(compare(trace::Trace{}, trace::Trace{}).answer, Answer::undecided);
}

TEST(Compare, ARunThatEndsEarlierDiffersWhereItEnds) {
  const auto found = compare(ShareJob{.updates = 40}.run(), [] {
    auto shorter = ShareJob{.updates = 40}.run();
    for (auto& rank : shorter.ranks)
      std::erase_if(rank.events, [](const auto& event) { return event.step >= 30; });
    return shorter;
  }());
  EXPECT_EQ(found.answer, Answer::different);
  EXPECT_EQ(found.first, Aspect::data);
  EXPECT_EQ(found.of(Aspect::data).first->step, 30);
  EXPECT_EQ(found.of(Aspect::data).first->b, "no batch");
  EXPECT_EQ(found.of(Aspect::update).first->step, 30);
  EXPECT_EQ(found.agree_until, 29);
}

// A step that is left out has the next one's number: what follows it is not compared with the batch before.
TEST(Compare, AStepThatIsLeftOutIsAStep) {
  const auto scaled = [](trace::Trace trace, std::int64_t left_out) {
    for (auto& rank : trace.ranks) {
      std::vector<trace::Event> events;
      for (auto& event : rank.events) {
        const bool update = event.is<trace::Update>(), leaves = event.step == left_out;
        if (update) {
          events.push_back({event.time_ns, event.step, trace::ScaledStep{1, leaves, !leaves}});
          if (leaves) continue;
        }
        events.push_back(event);
      }
      for (auto& event : events)
        if (left_out >= 0 && event.step > left_out) --event.step;
      rank.events = std::move(events);
    }
    return trace;
  };
  const auto a = scaled(ShareJob{}.run(), -1), b = scaled(ShareJob{}.run(), 3);
  const auto found = compare(a, b);
  EXPECT_EQ(found.first, Aspect::update);
  EXPECT_EQ(found.of(Aspect::update).first->step, 3);
  EXPECT_EQ(found.of(Aspect::update).first->b, "left out");
  EXPECT_EQ(found.of(Aspect::data).relation, Relation::equal);
  EXPECT_EQ(found.updates_a, found.updates_b);
}

// Where it began, nobody knows: it is told between which probes.
TEST(Compare, ADifferenceBetweenProbesIsToldAsSuch) {
  const auto probes = [](std::int64_t step) { return step % 8 == 0; };
  const auto a = ShareJob{.probes = probes}.run();
  auto b = ShareJob{.probes = probes}.run();
  at_step<trace::Parameters>(b, 0, 16).values[0] = another();
  const auto found = compare(a, b);
  EXPECT_EQ(found.of(Aspect::update).first->step, 16);
  const auto text = flat(to_text(found, "A", "B"));
  EXPECT_NE(text.find("at step 8: it began"), std::string::npos) << text;
  EXPECT_NE(text.find("./lockstep watch --every 1 --from 9 --to 16"), std::string::npos) << text;
  const auto package = flat(to_text(found, "A", "B", "lockstep"));
  EXPECT_NE(package.find("probed there: lockstep watch --every 1"), std::string::npos) << package;
}

// What a page draws: each tensor by its name, with the steps at which it is not equal to the bit.
TEST(Compare, EachTensorHasItsDistances) {
  const auto a = with_every_event();
  auto b = with_every_event();
  at_step<trace::Parameters>(b, 1, 1).values[0] = another();
  at_step<trace::LocalGradients>(b, 0, 2).values[1] = trace::Summary{};
  const auto found = compare(a, b);
  const auto& update = found.of(Aspect::update);
  ASSERT_EQ(update.tensors.size(), 2u);
  EXPECT_EQ(update.tensors[0].name, "weight0");
  ASSERT_EQ(update.tensors[0].distances.size(), 1u);
  EXPECT_EQ(update.tensors[0].distances[0].step, 1);
  EXPECT_GT(update.tensors[0].distances[0].distance, update.tensors[0].distances[0].tolerance);
  EXPECT_TRUE(update.tensors[1].distances.empty());
  const auto& gradients = found.of(Aspect::local_gradients);
  EXPECT_TRUE(std::isinf(gradients.tensors.at(1).distances.at(0).distance));
  const auto json = nlohmann::json::parse(to_json(found, "A", "B"));
  EXPECT_TRUE(json["aspects"][6]["tensors"][1]["distances"][0]["distance"].is_null());
  EXPECT_EQ(json["verdict"], verdict_text(found));
}

TEST(Compare, TextFitsTheTerminalAndJsonHasTheSame) {
  const auto a = with_every_event();
  auto b = with_every_event();
  at_step<trace::LocalGradients>(b, 1, 1).values[0] = another();
  const auto found = compare(a, b);
  std::istringstream lines(to_text(found, "runs/a", "runs/b"));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  const auto json = nlohmann::json::parse(to_json(found, "runs/a", "runs/b"));
  EXPECT_EQ(json["answer"], "different");
  EXPECT_EQ(json["first"], "local_gradients");
  EXPECT_EQ(json["aspects"].size(), static_cast<std::size_t>(kAspects));
  EXPECT_EQ(json["aspects"][6]["first"]["what"], "local gradient of weight0");
}

}  // namespace
}  // namespace lockstep::compare
