// Whether the ledger says of each equation what the run shows.
#include <gtest/gtest.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/diagnose.h>
#include <lockstep/diagnose/gradients.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "expect.h"
#include "job.h"

namespace lockstep::simulated {
namespace {

using diagnose::Equation;
using diagnose::Line;
using diagnose::Standing;

std::vector<Line> ledger_of(const trace::Trace& trace) {
  return diagnose::diagnose(trace).ledger;
}

const Line& line_of(const std::vector<Line>& ledger, Equation equation) {
  return ledger.at(static_cast<std::size_t>(equation));
}

TEST(Ledger, HasALineForEachEquationThatADetectorLooksAt) {
  const auto ledger = ledger_of(Job(2).run());
  ASSERT_EQ(ledger.size(), static_cast<std::size_t>(diagnose::kEquations));
  for (const auto& line : ledger) {
    const auto looks = [&](const auto& detector) { return detector.equation == line.equation; };
    EXPECT_TRUE(std::ranges::any_of(diagnose::detectors(), looks))
        << diagnose::text_of(line.equation).slug;
  }
}

TEST(Ledger, BreaksNothingOfARightJob) {
  const auto ledger = ledger_of(Job(3).run());
  for (const auto& line : ledger) EXPECT_NE(line.standing, Standing::broken) << line.evidence;
  for (const auto equation : {Equation::one_job, Equation::equal_start, Equation::own_samples,
                              Equation::mean_gradient, Equation::equal_after, Equation::rates}) {
    const auto& line = line_of(ledger, equation);
    EXPECT_EQ(line.standing, Standing::held) << diagnose::text_of(equation).slug << line.reason;
    EXPECT_FALSE(line.looked_at.empty());
  }
}

TEST(Ledger, SaysWhichEquationIsBrokenSinceWhenWhereAndBy) {
  Job job(3);
  job.reduce = false;
  job.has_engine = false;
  const auto ledger = ledger_of(job.run());
  const auto& gradient = line_of(ledger, Equation::mean_gradient);
  EXPECT_EQ(gradient.standing, Standing::broken);
  EXPECT_EQ(gradient.step, 0);
  EXPECT_EQ(gradient.ranks, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(gradient.broken_by.front(), "no-gradient-sync");
  const auto& after = line_of(ledger, Equation::equal_after);
  EXPECT_EQ(after.standing, Standing::broken);
  EXPECT_EQ(after.broken_by, (std::vector<std::string>{"replicas-diverged"}));
  EXPECT_EQ(line_of(ledger, Equation::equal_start).standing, Standing::held);
}

TEST(Ledger, SaysWhyAnEquationCannotBeTold) {
  for (const auto& line : ledger_of(empty_trace(2))) {
    if (line.equation == Equation::one_job) continue;  // both ranks are there
    EXPECT_TRUE(line.standing == Standing::open || line.standing == Standing::idle)
        << diagnose::text_of(line.equation).slug;
    EXPECT_FALSE(line.reason.empty()) << diagnose::text_of(line.equation).slug;
  }
}

// ---- what one event shows ----

trace::Trace with(const std::vector<trace::Payload>& of_ranks, std::int64_t step,
                  trace::Trace trace) {
  for (std::size_t r = 0; r < trace.ranks.size(); ++r) record(trace.ranks[r], step, of_ranks[r]);
  return trace;
}

TEST(Ledger, ALossOfWhatAnAllReduceOverwroteIsBroken) {
  const trace::GraphCut cut{"allreduce", 64};
  expect_only(with({cut, cut}, 1, Job(2).run()), "gather-loses-graph", all_ranks(2), 1);
}

TEST(Ledger, AStateOfOtherNamesIsNotLoaded) {
  trace::StateTaken taken{"Net", 9, 0, "a.weight", "_orig_mod.a.weight"};
  expect_only(with({taken, taken}, 0, Job(2).run()), "module-prefix", all_ranks(2), 0);
  taken.taken = 8;  // a head of its own
  expect_nothing(with({taken, taken}, 0, Job(2).run()));
  taken = {"Net", 9, 0, "a.weight", ""};  // an empty state
  expect_nothing(with({taken, taken}, 0, Job(2).run()));
}

TEST(Ledger, RanksThatScaleTheirLossesDifferentlyAreBrokenFromThenOn) {
  auto trace = Job(2).run();
  for (std::int64_t step = 0; step < 4; ++step) {
    const trace::ScaledStep scaled{.scale = 256}, grown{.scale = 512};
    trace = with({scaled, step >= 2 ? grown : scaled}, step, std::move(trace));
  }
  expect_only(trace, "loss-weight-differs", all_ranks(2), 2);
  EXPECT_EQ(line_of(ledger_of(trace), Equation::loss_weights).after, 1);
}

// Samples of one length stand together, and the batches are shuffled: once and for all, or anew.
TEST(Ledger, BatchesInOneShuffledOrderAreBroken) {
  Job job(2);
  job.samples = 96;
  const auto order = [](bool anew) {
    return [anew](int rank, int pass) {
      Ids ids;
      for (const auto batch : deal({.samples = 24}, rank, anew ? pass : 0))
        for (std::int64_t i = 0; i < 4; ++i) ids.push_back(4 * batch + i);
      return ids;
    };
  };
  job.told = [](int, int) { return std::nullopt; };
  job.order = order(false);
  EXPECT_EQ(line_of(ledger_of(job.run()), Equation::new_order).broken_by,
            (std::vector<std::string>{"missing-set-epoch"}));
  job.order = order(true);
  EXPECT_NE(line_of(ledger_of(job.run()), Equation::new_order).standing, Standing::broken);
}

TEST(Ledger, BuffersInAnotherOrderAreGivenToEachOther) {
  const auto values = summarize(draw_values(1, 2, 3));
  const trace::Buffers one{{"a", "b"}, values}, other{{"b", "a"}, values};
  const trace::Forward forward;
  const auto job = with({forward, forward}, 0, Job(2).run());
  const auto line = line_of(ledger_of(with({one, other}, -1, job)), Equation::buffers);
  EXPECT_EQ(line.broken_by, (std::vector<std::string>{"buffers-not-synced"}));
  EXPECT_EQ(line.evidence.substr(0, 46), "buffer 0 is \"a\" on rank 0 and \"b\" on rank 1: a");
  EXPECT_EQ(state(with({one, one}, -1, job), "buffers-not-synced"), diagnose::State::not_triggered);
  const trace::Buffers unlike{{"a", "c"}, values};  // another model: not this fault
  EXPECT_EQ(state(with({one, unlike}, -1, job), "buffers-not-synced"),
            diagnose::State::not_triggered);
}

TEST(Ledger, ASampleThatAnEvaluationDrawsTwiceIsLeftOpen) {
  Job job(2);
  job.evaluation_order = [](int rank, int) { return Ids{rank, 2, 3 + rank}; };
  const auto line = line_of(ledger_of(without<trace::Metric>(job.run())), Equation::joined_figures);
  EXPECT_EQ(line.standing, Standing::open);
  EXPECT_NE(line.reason.find("drew 6 samples, of which 5 are different"), std::string::npos)
      << line.reason;
}

// ---- two readings ----

// As where each rank's optimizer has the parameters that it owns, and sends them to the others.
TEST(Ledger, PartsOfAModelAreNotComparedAndTheirDataAre) {
  Job job(2);
  job.has_engine = false;
  job.order = [](int, int pass) { return permutation(101, pass); };
  auto trace = job.run();
  for (auto [step, model] : each<trace::Model>(trace.ranks[1])) model.shapes[0] = {6};
  for (auto& rank : trace.ranks)
    for (std::int64_t step = 0; step <= rank.all<trace::Update>().back().step; ++step)
      for (const int root : {0, 1})
        record(rank, step, call(2 * step + root, "0", "broadcast", root, 1000));
  for (auto [step, parameters] : each<trace::Parameters>(trace.ranks[1]))
    parameters.values[0] = summarize(draw_values(3, 3, step))[0];
  const auto ledger = ledger_of(trace);
  for (const auto equation :
       {Equation::equal_start, Equation::mean_gradient, Equation::equal_after}) {
    const auto& line = line_of(ledger, equation);
    EXPECT_EQ(line.standing, Standing::open) << line.evidence;
    EXPECT_EQ(line.reason, diagnose::kOtherShapes);
  }
  EXPECT_EQ(line_of(ledger, Equation::own_samples).standing, Standing::broken);
}

TEST(Ledger, ALossWhoseGradientIsAddedTwiceIsLeftOpen) {
  const auto line =
      line_of(ledger_of(with({trace::LossAgain{1}, trace::LossAgain{1}}, 1, Job(2).run())),
              Equation::loss_weights);
  EXPECT_EQ(line.standing, Standing::open);
  EXPECT_EQ(line.step, 1);
  EXPECT_NE(line.reason.find("1 earlier backward"), std::string::npos) << line.reason;
}

TEST(Ledger, ATeacherInTrainingModeIsLeftOpen) {
  const trace::OutsideInTraining called{"Teacher"};
  const auto line = line_of(ledger_of(with({called, called}, 1, Job(2).run())), Equation::modes);
  EXPECT_EQ(line.standing, Standing::open);
  EXPECT_EQ(line.step, 1);
  EXPECT_NE(line.reason.find("Teacher, which no optimizer trains"), std::string::npos)
      << line.reason;
}

TEST(Ledger, ASumOfGradientsIsLeftOpen) {
  Job job(2);
  job.declares_mean = false;
  job.reduced_times = 2;
  const auto line = line_of(ledger_of(job.run()), Equation::mean_gradient);
  EXPECT_EQ(line.standing, Standing::open);
  EXPECT_NE(line.reason.find("2 times the mean"), std::string::npos) << line.reason;
}

// Replicas go by their own gradients, and before every second update each is given the mean of all, or rank 0's.
TEST(Ledger, ReplicasThatAreAveragedNeedNoMeanGradient) {
  const auto summary = [](double value) {
    const auto hash = static_cast<std::uint64_t>(1000 * value);
    return std::vector{trace::Summary{hash, std::abs(value), {value, value, value, value}}};
  };
  const auto line = [&](bool mean) {
    auto trace = empty_trace(2);
    for (auto& rank : trace.ranks) {
      const double own = rank.participant.rank == 0 ? 1 : 3;
      record(rank, -1, trace::Parameters{summary(5)});
      for (std::int64_t step = 0; step < 8; ++step) {
        if (step > 0 && step % 2 == 0)
          record(rank, step, trace::BeforeUpdate{true, summary(mean ? 2 : 1)});
        record(rank, step, trace::LocalGradients{4, summary(own)});
        record(rank, step, trace::ReducedGradients{summary(own)});
        record(rank, step, trace::Update{{0.1}});
        record(rank, step, trace::Parameters{summary(own)});
      }
    }
    return line_of(ledger_of(trace), Equation::mean_gradient);
  };
  EXPECT_EQ(line(true).standing, Standing::idle) << line(true).reason;
  EXPECT_NE(line(false).standing, Standing::idle);
}

TEST(Ledger, BatchesThatComeAgainInOneOrderAreLeftOpen) {
  const auto given = [](std::int64_t period) {
    auto trace = empty_trace(2);
    for (auto& rank : trace.ranks)
      for (std::int64_t step = 0; step < 12; ++step)
        record(rank, step, trace::Rows{Ids{100 + step % period, 200 + step % period}});
    return line_of(ledger_of(trace), Equation::new_order);
  };
  EXPECT_NE(given(4).reason.find("the model is given the same 4 batches"), std::string::npos)
      << given(4).reason;
  EXPECT_EQ(given(4).step, 4);
  EXPECT_EQ(given(1).reason.find("again"),
            std::string::npos);  // one batch, as a test of overfitting
  EXPECT_EQ(given(12).reason.find("again"), std::string::npos);  // never
}

// One backward: the rows of its forward, and what its loss was divided by.
void backward(trace::ParticipantTrace& rank, std::int64_t step, std::int64_t rows, double divisor) {
  record(rank, step, trace::Input{.index = 0, .shape = {rows, 3}, .dtype = "float32"});
  record(rank, step, trace::LossDivisors{{divisor}});
  record(rank, step, trace::Backward{0.5});
}

using Backwards = std::vector<std::pair<std::int64_t, double>>;  // rows, divisor

// Of `of(rank, step)` in each of eight updates.
Line weights_line(const std::function<Backwards(int, std::int64_t)>& of) {
  auto trace = empty_trace(2);
  for (auto& rank : trace.ranks)
    for (std::int64_t step = 0; step < 8; ++step) {
      for (const auto& [rows, divisor] : of(rank.participant.rank, step))
        backward(rank, step, rows, divisor);
      record(rank, step, trace::Update{{0.1}});
    }
  return line_of(ledger_of(trace), Equation::loss_weights);
}

TEST(Ledger, SamplesThatDoNotCountAlikeAreLeftOpen) {
  const auto says = [](const Line& line, const std::string& text, std::int64_t step) {
    EXPECT_EQ(line.standing, Standing::open);
    EXPECT_NE(line.reason.find(text), std::string::npos) << line.reason;
    EXPECT_EQ(line.step, step);
    EXPECT_EQ(line.ranks, all_ranks(2));
  };
  const Backwards whole{{16, 64}, {16, 64}, {16, 64}, {16, 64}};
  // The last micro-batch is smaller, and counts as much; or an update has fewer, and is divided by as many.
  says(weights_line([&](int, auto step) {
         return step == 3 ? Backwards{{16, 64}, {16, 64}, {16, 64}, {2, 8}} : whole;
       }),
       "the loss of 2 divided by 8, and of 16 divided by 64", 3);
  says(weights_line([&](int, auto step) {
         return step == 5 ? Backwards{{16, 64}} : whole;
       }),
       "this update has 1 of 4 batches", 5);
  says(weights_line([&](int rank, auto) {
         return Backwards{{rank == 0 ? 12 : 20, rank == 0 ? 12. : 20.}};
       }),
       "the loss of 12 divided by 12 on one rank, and of 20 divided by 20", 0);
  says(weights_line([&](int, auto) { return Backwards{{16, 15}}; }), "mean of 1 fewer numbers", 0);
  // Right: whole windows, a short one that is divided by its own batches, a last batch that is smaller, tokens, a loss that
  // is doubled, two losses, and a short window of longer texts.
  for (const auto& right :
       {weights_line([&](int, auto) { return whole; }), weights_line([&](int, auto) {
          return Backwards{{32, 16}};
        }),
        weights_line([&](int, auto) {
          return Backwards{{32, 32}, {32, 32}};
        }),
        weights_line([&](int, auto step) {
          return step == 5 ? Backwards{{16, 17}, {16, 17}} : whole;
        }),
        weights_line([&](int, auto step) {
          return step == 5 ? Backwards{{16, 16}} : whole;
        }),
        weights_line([&](int rank, auto step) {
          const bool last = rank == 1 && step == 7;
          return Backwards{{last ? 3 : 16, last ? 3. : 16.}};
        }),
        weights_line([&](int, auto) {
          return Backwards{{16, 496}};
        })})
    EXPECT_EQ(right.ranks, std::vector<int>{}) << right.reason;
}

// A GradScaler leaves its first step out: what replicas start from is none of it.
TEST(Ledger, ReplicasStartBeforeAStepThatIsLeftOut) {
  auto trace = Job(2).run();
  for (auto& rank : trace.ranks) {
    const auto first = std::ranges::find_if(
        rank.events, [](const auto& event) { return event.template is<trace::LocalGradients>(); });
    rank.events.insert(first, {first->time_ns, 0, trace::ScaledStep{65536, true, false}});
  }
  EXPECT_EQ(line_of(ledger_of(trace), Equation::equal_start).standing, Standing::held);
}

TEST(Ledger, AnEvaluationOfAllSamplesOnEachRankIsNoDoubt) {
  Job job(2);
  job.evaluation_order = [](int, int) { return Ids{0, 1, 2}; };
  const auto line = line_of(ledger_of(without<trace::Metric>(job.run())), Equation::joined_figures);
  EXPECT_EQ(line.reason.find("an evaluation drew"), std::string::npos) << line.reason;
}

// Ranks train on shares of 64 samples in steps of 8 each, and evaluate together those from `first` on.
diagnose::Line of_evaluated(std::int64_t first, std::int64_t repeats = 0) {
  auto trace = without<trace::Metric>(Job(2).run());
  for (auto& rank : trace.ranks) {
    for (std::int64_t step = 0; step < 4; ++step) {
      Ids fed;
      for (std::int64_t i = 0; i < 8; ++i) fed.push_back(32 * rank.participant.rank + 8 * step + i);
      for (std::int64_t i = 0; i < repeats; ++i) fed.push_back(fed.front());
      record(rank, step, trace::Rows{fed});
    }
    Ids evaluated;
    for (std::int64_t i = 0; i < 16; ++i)
      evaluated.push_back(first + 16 * rank.participant.rank + i);
    record(rank, 4, trace::EvaluationRows{evaluated});
    record(rank, 4, trace::Forward{});
  }
  return line_of(ledger_of(trace), Equation::joined_figures);
}

TEST(Ledger, AnEvaluationOfSomeThatAreTrainedOnIsLeftOpen) {
  const auto line = of_evaluated(48);
  EXPECT_EQ(line.standing, Standing::open);
  EXPECT_EQ(line.step, 4);
  EXPECT_NE(line.reason.find("of 32 different samples that evaluations were given, 16 had been "
                             "trained on, and 16 never are"),
            std::string::npos)
      << line.reason;
  EXPECT_EQ(of_evaluated(64).standing, Standing::held);
  EXPECT_EQ(of_evaluated(48, 1).standing, Standing::held);  // samples have equal contents
}

TEST(Ledger, AnEvaluationOfNothingElseThanIsTrainedOnIsSaid) {
  const auto line = of_evaluated(16);
  EXPECT_EQ(line.standing, Standing::held);
  EXPECT_NE(line.looked_at.find(": all 32 samples that evaluations were given are trained on, too"),
            std::string::npos)
      << line.looked_at;
}

TEST(Ledger, PassesThatAreLeftHalfWayAreLeftOpen) {
  const auto line = [](bool ended) {
    auto trace = empty_trace(2);
    for (auto& rank : trace.ranks) {
      record(rank, -1, trace::Dataset{.phase = "train", .size = 40, .global_size = 40});
      for (std::int64_t pass = 0; pass < 3; ++pass) {
        record(rank, pass, trace::PassBegin{"train", pass});
        for (std::int64_t i = 0; i < 10; i += 5)
          record(rank, pass, trace::Samples{"train", {i, i + 1, i + 2, i + 3, i + 4}});
        if (ended) record(rank, pass, trace::PassEnd{"train", pass, 2});
      }
    }
    return line_of(ledger_of(trace), Equation::own_samples);
  };
  EXPECT_NE(line(false).reason.find("each pass is left after 2 batches a rank: 20 of 40"),
            std::string::npos)
      << line(false).reason;
  EXPECT_EQ(line(false).step, 1);
  EXPECT_EQ(line(true).reason.find("each pass is left"), std::string::npos);
}

TEST(Ledger, APassInTheOrderOfAnEarlierOneIsLeftOpen) {
  const auto line = [](bool again) {
    auto trace = empty_trace(2);
    for (auto& rank : trace.ranks)
      for (std::int64_t pass = 0; pass < 3; ++pass) {
        const std::int64_t turn = again ? pass % 2 : pass;
        record(rank, pass, trace::PassBegin{"train", pass});
        record(rank, pass,
               trace::Samples{"train", Ids{7 + turn, 3, rank.participant.rank, 5 - turn}});
        record(rank, pass, trace::Update{{0.1}});
        record(rank, pass + 1, trace::PassEnd{"train", pass, 1});
      }
    return line_of(ledger_of(trace), Equation::new_order);
  };
  EXPECT_EQ(line(true).step, 2) << line(true).reason;
  EXPECT_NE(line(true).reason.find("pass 2 draws the same samples in the same order as pass 0"),
            std::string::npos)
      << line(true).reason;
  EXPECT_EQ(line(false).reason.find("in the same order"), std::string::npos) << line(false).reason;
}

TEST(Ledger, AnEvaluationInTrainingModeIsLeftOpen) {
  for (const bool training : {true, false}) {
    auto trace = empty_trace(2);
    for (auto& rank : trace.ranks) {
      record(rank, 0, trace::Forward{true});
      record(rank, 0, trace::Update{{0.1}});
      record(rank, 1, trace::PassBegin{"evaluation", 0});
      record(rank, 1, trace::Forward{training});
    }
    const auto line = line_of(ledger_of(trace), Equation::modes);
    EXPECT_EQ(line.step, training ? 1 : -1) << line.reason;
  }
}

TEST(Ledger, WorkersWithOneSeedThatDrawForSamplesAreLeftOpen) {
  for (const bool varies : {true, false}) {
    auto trace = empty_trace(2);
    for (auto& rank : trace.ranks)
      for (std::int64_t pass = 0; pass < 2; ++pass) {
        record(rank, pass, trace::Workers{10 + pass});
        record(rank, pass, trace::Contents{Ids{7}, Ids{varies ? pass : 0}});
      }
    const auto line = line_of(ledger_of(trace), Equation::random_numbers);
    EXPECT_EQ(line.reason.find("same seeds on all ranks") != std::string::npos, varies)
        << line.reason;
  }
}

}  // namespace
}  // namespace lockstep::simulated
