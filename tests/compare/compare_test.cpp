// Two simulated runs of which one thing is changed: that is what is said to differ first, at its step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/compare/compare.h>
#include <lockstep/diagnose/gradients.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../diagnose/job.h"
#include "share_job.h"

namespace lockstep::compare {
namespace {

using diagnose::Equation;
using diagnose::Standing;
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

const char* slug(Equation equation) {
  return diagnose::text_of(equation).slug;
}

struct Change {
  const char* name;
  Equation equation;
  std::int64_t step;
  const char* what;
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
      {"Shape", Equation::equal_settings, -1, "parameter weight0",
       [](auto& t) {
         each<trace::Model>(t.ranks[1])[0].second.shapes[0] = {3, 2};
       }},
      {"Content", Equation::own_samples, -1, "train data set: hash of what it holds",
       [](auto& t) { each<trace::Dataset>(t.ranks[1])[0].second.content_as_set = 5; }},
      {"Ids", Equation::own_samples, 2, "train samples", [](auto& t) { change_ids(t, false); }},
      {"Order", Equation::new_order, 2, "order of the train samples",
       [](auto& t) { change_ids(t, true); }},
      {"RandomNumbers", Equation::random_numbers, 1, "random numbers of sample 69",
       [](auto& t) { at_step<trace::RandomNumbers>(t, 1, 1).hashes[2] = 5; }},
      {"Initial", Equation::equal_start, -1, "bias0",
       [](auto& t) { at_step<trace::Parameters>(t, 1, -1).values[1] = another(); }},
      {"Mode", Equation::modes, 3, "mode of the forwards",
       [](auto& t) { at_step<trace::Forward>(t, 1, 3).training = false; }},
      {"Loss", Equation::loss_weights, 2, "mean loss of the samples",
       [](auto& t) { at_step<trace::Loss>(t, 1, 2).sum *= 1.01; }},
      {"BackwardValue", Equation::loss_weights, 2, "loss that backward starts from",
       [](auto& t) { at_step<trace::Loss>(t, 1, 2).backward_value /= 2; }},
      {"LocalGradient", Equation::mean_gradient, 1, "local gradient of weight0",
       [](auto& t) { at_step<trace::LocalGradients>(t, 1, 1).values[0] = another(); }},
      {"NoGradient", Equation::mean_gradient, 1, "local gradient of weight0",
       [](auto& t) { at_step<trace::LocalGradients>(t, 1, 1).values[0] = {}; }},
      {"ReducedGradient", Equation::mean_gradient, 2, "reduced gradient of bias0",
       [](auto& t) { at_step<trace::ReducedGradients>(t, 1, 2).values[1] = another(); }},
      {"LearningRate", Equation::rates, 5, "learning rate",
       [](auto& t) { at_step<trace::Update>(t, 1, 5).lr = {0.2}; }},
      {"Update", Equation::all_moved, 3, "weight0",
       [](auto& t) { at_step<trace::Parameters>(t, 1, 3).values[0] = another(); }},
      {"Buffer", Equation::buffers, 1, "buffer mean",
       [](auto& t) { at_step<trace::Buffers>(t, 1, 1).values[0] = another(); }},
      {"Metric", Equation::joined_figures, 13, "evaluation accuracy",
       [](auto& t) { at_step<trace::Metric>(t, 1, 13).sum *= 2; }},
      {"Checkpoint", Equation::saved_is_held, 3, "model as saved",
       [](auto& t) { at_step<trace::TrainingState>(t, 1, 3).hashes[0] = 9; }},
      {"RngState", Equation::saved_is_held, 3, "rng_state as saved",
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
  EXPECT_EQ(slug(*found.first), slug(GetParam().equation));
  const auto& line = found.of(*found.first).line;
  EXPECT_EQ(line.step, GetParam().step);
  EXPECT_EQ(line.ranks, std::vector<int>{1});
  EXPECT_NE(line.apart->a, line.apart->b);
  EXPECT_THAT(line.broken_by, testing::ElementsAre(GetParam().what));
  for (const auto& each : found.ledger) {
    // Equal gradients that move parameters otherwise leave them apart.
    const bool follows =
        GetParam().equation == Equation::all_moved && each.line.equation == Equation::equal_after;
    EXPECT_EQ(each.parts(), each.line.equation == GetParam().equation || follows)
        << slug(each.line.equation);
  }
}

TEST(Compare, TheSameJobTwiceIsEqualToTheBit) {
  const auto a = with_every_event(), b = with_every_event();
  const auto found = compare(a, b);
  EXPECT_EQ(found.answer, Answer::equal);
  EXPECT_FALSE(found.first);
  ASSERT_EQ(found.ledger.size(), static_cast<std::size_t>(diagnose::kEquations));
  for (const auto& each : found.ledger) {
    const auto& line = each.line;
    const bool is_idle = line.equation == Equation::clipped_once;
    EXPECT_EQ(line.standing, is_idle                                 ? Standing::idle
                             : line.equation == Equation::same_calls ? Standing::open
                                                                     : Standing::held)
        << slug(line.equation);
    EXPECT_TRUE(each.to_the_bit) << slug(line.equation);
    EXPECT_EQ(line.looked_at.empty(), line.standing != Standing::held) << slug(line.equation);
    EXPECT_EQ(line.reason.empty(), line.standing == Standing::held) << slug(line.equation);
  }
  EXPECT_EQ(found.of(Equation::equal_start).line.looked_at, "1 step, equal to the bit");
}

TEST(Compare, AnEarlierConsequenceIsNoReasonToSayALaterCause) {
  const auto a = with_every_event();
  auto b = with_every_event();
  at_step<trace::Parameters>(b, 1, 1).values[0] = another();
  at_step<trace::Loss>(b, 1, 2).sum *= 2;
  const auto found = compare(a, b);
  EXPECT_EQ(found.first, Equation::all_moved);
  EXPECT_EQ(found.of(Equation::equal_after).line.step, 1);
  EXPECT_EQ(found.agree_until, 0);
  EXPECT_EQ(found.of(Equation::loss_weights).line.step, 2);
}

TEST(Compare, OfOneStepTheCauseComesFirst) {
  const auto a = with_every_event();
  auto b = with_every_event();
  at_step<trace::Parameters>(b, 0, 2).values[0] = another();
  at_step<trace::Loss>(b, 0, 2).sum *= 2;
  const auto found = compare(a, b);
  EXPECT_EQ(found.first, Equation::loss_weights);
  EXPECT_EQ(found.of(Equation::equal_after).line.step, 2);
  // What the update makes of another loss says nothing of the update.
  EXPECT_EQ(found.of(Equation::all_moved).steps, (Steps{0, 1}));
  EXPECT_EQ(found.of(Equation::all_moved).line.standing, Standing::held);
}

TEST(Compare, AllRanksThatDifferAreNamed) {
  const auto a = with_every_event(3);
  auto b = with_every_event(3);
  for (const int rank : {0, 2}) at_step<trace::Update>(b, rank, 1).lr = {0.2};
  const auto found = compare(a, b);
  EXPECT_EQ(found.of(Equation::rates).line.ranks, (std::vector<int>{0, 2}));
}

// A setting is a cause where something follows from it, and a note where nothing does.
TEST(Compare, ASettingIsTheCauseOnlyWhereTheTrainingDiffers) {
  const auto told = [](trace::Trace trace, const char* value) {
    for (auto& rank : trace.ranks)
      simulated::record(rank, -1,
                        trace::Settings{trace::SettingsOf::engine, {"bucket_bytes_cap"}, {value}});
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
  EXPECT_EQ(found.first, Equation::equal_settings);
  EXPECT_EQ(found.of(Equation::loss_weights).line.step, 2);
}

// As where a layer was replaced after the model was wrapped.
TEST(Compare, ASettingThatChangesIsComparedWithAllItsValues) {
  const auto told = [](std::vector<const char*> values) {
    auto trace = with_every_event();
    for (auto& rank : trace.ranks)
      for (const auto* value : values)
        simulated::record(rank, -1, trace::Settings{trace::SettingsOf::model, {"1"}, {value}});
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
  EXPECT_EQ(found.first, Equation::saved_is_held);
  const auto& first = found.of(Equation::saved_is_held).line;
  EXPECT_EQ(first.step, 2);
  EXPECT_EQ(first.ranks, std::vector<int>{1});
  EXPECT_THAT(first.apart->a, testing::EndsWith("load of what was saved at step 2"));
  EXPECT_THAT(first.apart->b, testing::EndsWith("load of what was saved at step 1"));
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
  EXPECT_EQ(found.first, Equation::saved_is_held);
  const auto& first = found.of(Equation::saved_is_held).line;
  EXPECT_EQ(first.step, 1);
  EXPECT_EQ(first.ranks, std::vector<int>{0});
  EXPECT_EQ(first.apart->a, "optimizer");
  EXPECT_EQ(first.apart->b, "lr");
  EXPECT_EQ(compare(saves({"a"}), saves({"a", "b", "c", "d", "e", "f", "g", "h", "i"}))
                .of(Equation::saved_is_held)
                .line.apart->b,
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
  EXPECT_EQ(found.first, Equation::loss_weights);
  EXPECT_EQ(found.of(Equation::loss_weights).line.step, 11);
  EXPECT_EQ(found.of(Equation::loss_weights).line.ranks, std::vector<int>{1});
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
  EXPECT_EQ(compare(with({"model", "optimizer"}, 1), with({"model"}, 1)).first,
            Equation::saved_is_held);
  EXPECT_EQ(compare(with({"model", "rng_state"}, 1), with({"model", "rng_state"}, 2)).first,
            Equation::saved_is_held);
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
  EXPECT_EQ(found.first, Equation::modes);
  EXPECT_EQ(found.of(Equation::own_samples).line.standing, Standing::held);
}

TEST(Compare, OtherRanksTrainTheSameGlobalBatches) {
  const auto one = ShareJob{}.run();
  for (const int ranks : {2, 4}) {
    const auto other = ShareJob{.ranks = ranks}.run();
    const auto found = compare(one, other);
    EXPECT_EQ(found.answer, Answer::rounding) << ranks;
    EXPECT_EQ(found.of(Equation::own_samples).steps.size(), 41u);  // and before training
    EXPECT_EQ(found.of(Equation::mean_gradient).steps.size(), 40u);
    EXPECT_TRUE(found.of(Equation::own_samples).to_the_bit);
  }
}

TEST(Compare, OtherRanksWithOtherBatchesDifferInTheData) {
  const auto one = ShareJob{}.run();
  const auto found = compare(one, ShareJob{.ranks = 2, .global_batch = 16}.run());
  EXPECT_EQ(found.first, Equation::own_samples);
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
  EXPECT_EQ(found.first, Equation::mean_gradient);
  EXPECT_EQ(found.of(Equation::mean_gradient).line.step, 0);
  EXPECT_THAT(found.of(Equation::mean_gradient).line.broken_by,
              testing::ElementsAre("reduced gradient of weight"));
}

TEST(Compare, OtherRanksWhoseReplicasAreApartDiffer) {
  const auto one = ShareJob{}.run();
  auto two = ShareJob{.ranks = 2}.run();
  at_step<trace::Parameters>(two, 1, 5).values[0] = another();
  const auto found = compare(one, two);
  EXPECT_EQ(found.first, Equation::equal_after);
  EXPECT_EQ(found.of(Equation::equal_after).line.step, 5);
  EXPECT_NE(found.of(Equation::equal_after).line.broken_by.front().find("ranks 0 and 1 of B"),
            std::string::npos);
}

// One unit of rounding in each gradient is noise; a thousand times as much is another training.
TEST(Compare, NoiseOfRoundingIsEqualToRoundingAndMoreIsNot) {
  const auto a = ShareJob{.ranks = 2}.run();
  const auto near = compare(a, ShareJob{.ranks = 2, .noise = 1e-7}.run());
  EXPECT_EQ(near.answer, Answer::rounding);
  EXPECT_FALSE(near.of(Equation::mean_gradient).distances.empty());
  const auto far = compare(a, ShareJob{.ranks = 2, .noise = 1e-3}.run());
  EXPECT_EQ(far.answer, Answer::different);
  EXPECT_EQ(far.first, Equation::mean_gradient);
  EXPECT_THAT(far.of(Equation::mean_gradient).line.broken_by.front(),
              testing::StartsWith("local gradient of "));
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
  EXPECT_EQ(compare(a, b).first, Equation::mean_gradient);
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
  EXPECT_EQ(compare(a, saved(ShareJob{}.run(), 2)).first, Equation::saved_is_held);
  const auto faster = compare(a, saved(ShareJob{.lr = 0.02}.run(), 2));
  EXPECT_EQ(faster.first, Equation::rates);
  EXPECT_EQ(faster.of(Equation::saved_is_held).line.standing, Standing::broken);
}

TEST(Compare, ProbesOnDifferentStepsLeaveItUndecided) {
  const auto even = ShareJob{.probes = [](std::int64_t step) { return step % 2 == 0; }}.run();
  const auto odd = ShareJob{.probes = [](std::int64_t step) { return step % 2 == 1; }}.run();
  const auto found = compare(even, odd);
  EXPECT_EQ(found.answer, Answer::undecided);
  EXPECT_TRUE(found.of(Equation::equal_after).probes_apart());
  const auto text = flat(to_text(found, "A", "B"));
  EXPECT_NE(text.find("0, 2, 4, 6, 8, 10, 12, 14 and 12 more in A only"), std::string::npos)
      << text;
  EXPECT_NE(text.find("record both runs with the same --every, --from and --to"), std::string::npos)
      << text;
}

TEST(Compare, ProbesThatAreAmongTheOthersDecide) {
  const auto all = ShareJob{}.run();
  const auto some = ShareJob{.probes = [](std::int64_t step) { return step % 8 == 0; }}.run();
  const auto found = compare(all, some);
  EXPECT_EQ(found.answer, Answer::equal);
  EXPECT_EQ(found.of(Equation::equal_after).steps.size(), 5u);
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
  EXPECT_EQ(found.first, Equation::own_samples);
  EXPECT_EQ(found.of(Equation::own_samples).line.step, 30);
  EXPECT_EQ(found.of(Equation::own_samples).line.apart->b, "no batch");
  EXPECT_EQ(found.of(Equation::all_moved).line.step, 30);
  EXPECT_THAT(found.of(Equation::all_moved).line.broken_by,
              testing::ElementsAre("number of updates"));
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
  EXPECT_EQ(found.first, Equation::all_moved);
  EXPECT_EQ(found.of(Equation::all_moved).line.step, 3);
  EXPECT_EQ(found.of(Equation::all_moved).line.apart->b, "left out");
  EXPECT_TRUE(found.of(Equation::own_samples).to_the_bit);
  EXPECT_EQ(found.updates_a, found.updates_b);
}

// Where it began, nobody knows: it is told between which probes.
TEST(Compare, ADifferenceBetweenProbesIsToldAsSuch) {
  const auto probes = [](std::int64_t step) { return step % 8 == 0; };
  const auto a = ShareJob{.probes = probes}.run();
  auto b = ShareJob{.probes = probes}.run();
  at_step<trace::Parameters>(b, 0, 16).values[0] = another();
  const auto found = compare(a, b);
  EXPECT_EQ(found.of(Equation::equal_after).line.step, 16);
  const auto text = flat(to_text(found, "A", "B"));
  EXPECT_NE(text.find("since step 16 (it held at step 8), rank 0: weight"), std::string::npos)
      << text;
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
  const auto& update = found.of(Equation::equal_after);
  ASSERT_EQ(update.tensors.size(), 2u);
  EXPECT_EQ(update.tensors[0].name, "weight0");
  ASSERT_EQ(update.tensors[0].distances.size(), 1u);
  const auto& [step, apart] = *update.tensors[0].distances.begin();
  EXPECT_EQ(step, 1);
  EXPECT_GT(apart.distance, apart.tolerance);
  EXPECT_TRUE(update.tensors[1].distances.empty());
  const auto& gradients = found.of(Equation::mean_gradient);
  std::vector<std::string> names;
  for (const auto& tensor : gradients.tensors) names.push_back(tensor.name);
  EXPECT_THAT(names, testing::ElementsAre("local weight0", "local bias0", "reduced weight0",
                                          "reduced bias0"));
  EXPECT_TRUE(std::isinf(gradients.tensors.at(1).distances.at(2).distance));
  const auto json = nlohmann::json::parse(to_json(found, "A", "B"));
  EXPECT_TRUE(json["measured"][8]["tensors"][1]["distances"][0]["distance"].is_null());
  EXPECT_EQ(json["verdict"], verdict_text(found));
}

TEST(Compare, TextFitsTheTerminalAndJsonHasTheSame) {
  const auto a = with_every_event();
  auto b = with_every_event();
  at_step<trace::LocalGradients>(b, 1, 1).values[0] = another();
  const auto found = compare(a, b);
  const auto text = to_text(found, "runs/a", "runs/b");
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_THAT(
      text, testing::HasSubstr(
                "They part first in this:\n"
                "  differ  the gradient is the mean of the ranks' own, of this step\n"
                "            since step 1 (it held at step 0), rank 1: local gradient of weight0:\n"
                "            norm "));
  EXPECT_THAT(text, testing::HasSubstr("  -       clipping sees the mean gradient"));
  const auto json = nlohmann::json::parse(to_json(found, "runs/a", "runs/b"));
  EXPECT_EQ(json["answer"], "different");
  EXPECT_EQ(json["first"], "mean-gradient");
  EXPECT_EQ(json["ledger"].size(), static_cast<std::size_t>(diagnose::kEquations));
  const auto& line = json["ledger"][8];
  EXPECT_EQ(line["broken_by"][0], "local gradient of weight0");
  EXPECT_EQ(line["step"], 1);
  EXPECT_EQ(line["after"], 0);
  EXPECT_EQ(line["ranks"], std::vector<int>{1});
  EXPECT_GT(line["apart"]["distance"], line["apart"]["tolerance"]);
  EXPECT_EQ(json["measured"][8]["equation"], line["equation"]);
}

// Nothing is recorded of it, in one run or in both: as a diagnosis of each says.
TEST(Compare, WhyAnEquationCannotBeComparedIsTold) {
  const auto a = with_every_event();
  auto b = a;
  for (auto& rank : b.ranks)
    std::erase_if(rank.events, [](const auto& event) {
      return event.template is<trace::LocalGradients>() ||
             event.template is<trace::ReducedGradients>();
    });
  const auto line = compare(a, b).of(Equation::mean_gradient).line;
  EXPECT_EQ(line.standing, Standing::open);
  EXPECT_EQ(line.reason, std::string("in A only; of B: ") + diagnose::kNoGradients);
  EXPECT_EQ(compare(b, b).of(Equation::mean_gradient).line.reason, diagnose::kNoGradients);
  EXPECT_EQ(compare(a, ShareJob{.ranks = 4}.run()).of(Equation::one_job).line.standing,
            Standing::open);
}

}  // namespace
}  // namespace lockstep::compare
