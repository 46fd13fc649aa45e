// Pitfalls of jobs that are started again, or that are expected to be.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/format.h>

#include <algorithm>
#include <optional>

namespace lockstep::diagnose {
namespace {
Verdict restart_without_resume(const Run& run);
Verdict restart_expected_by_default(const Run& run);
}  // namespace

std::vector<Detector> restarts_detectors() {
  return {
      // Needs `attempt` of two attempts, `training_state`, `pass_begin`, and `pass_end` or a next
      // pass. Rule: a later attempt began with an epoch after which the state had been saved, and
      // loaded nothing.
      {.slug = "restart-without-resume",
       .equation = Equation::saved_is_held,
       .line = "",
       .needs = {"attempt", "training_state", "pass_begin"},
       .participants = Participants::ranks,
       .fewest = 1,
       .complete = false,
       .detect = restart_without_resume},
      // Needs `attempt` (by which a program says that it is made for restarts), `training_state`
      // and the launcher's trace. Rule: a job that saves its state ended with a rank's failure, and
      // its launcher was to start it once only.
      {.slug = "restart-expected-by-default",
       .equation = Equation::saved_is_held,
       .line = "",
       .needs = {"attempt", "rank_end"},
       .participants = Participants::ranks,
       .fewest = 1,
       .complete = false,
       .stage = Stage::failure,
       .detect = restart_expected_by_default},
  };
}

namespace {
// What one rank did in its attempts.
struct Story {
  std::vector<std::int64_t> attempts;  // restart counts, in order
  std::int64_t max_restarts = 0;       // of the last one
  bool saved = false;                  // a checkpoint, in whichever attempt
  std::int64_t last_saved_epoch = -1;  // trained, and saved thereafter
  // Of the later attempts: the first that began with an epoch that had been saved, and loaded nothing.
  std::int64_t begun_again = -1, epoch = -1, saved_epoch = -1, step = -1;
};

Story story_of(const trace::ParticipantTrace& rank) {
  Story story;
  std::int64_t trained_epoch = -1, under_way = -1;
  bool loaded = false, began = false;
  for (const auto& event : rank.events) {
    if (const auto* attempt = event.as<trace::Attempt>()) {
      story.attempts.push_back(attempt->restart_count);
      story.max_restarts = attempt->max_restarts;
      loaded = began = false;
      under_way = -1;
    }
    if (const auto* file = event.as<trace::CheckpointFile>())
      loaded = loaded || (file->action == "load" && file->accepted);
    if (const auto* state = event.as<trace::TrainingState>()) {
      loaded = loaded || state->moment == "resumed";
      if (state->moment == "saved") story.saved = true, story.last_saved_epoch = trained_epoch;
    }
    if (const auto* end = event.as<trace::PassEnd>(); end && end->phase == "train")
      trained_epoch = end->epoch;
    const auto* begin = event.as<trace::PassBegin>();
    if (begin == nullptr || begin->phase != "train") continue;
    // A pass of which a last, smaller batch is left out has no end.
    if (under_way >= 0 && begin->epoch > under_way) trained_epoch = under_way;
    under_way = begin->epoch;
    if (began) continue;
    began = true;
    if (story.attempts.size() < 2 || loaded || begin->epoch > story.last_saved_epoch) continue;
    if (story.begun_again >= 0) continue;
    story.begun_again = story.attempts.back();
    story.epoch = begin->epoch;
    story.saved_epoch = story.last_saved_epoch;
    story.step = event.step;
  }
  return story;
}

std::string how(const trace::RankEnd& end) {
  if (end.how == "signalled") return fmt::format("signal {}", end.signal);
  return end.how == "raised" ? "it raised an error" : fmt::format("exit code {}", end.exit_code);
}

Verdict restart_without_resume(const Run& run) {
  std::vector<int> ranks;
  std::optional<Story> first;
  bool restarted = false, saved = false;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const auto story = story_of(*run.ranks[r]);
    restarted = restarted || story.attempts.size() > 1;
    saved = saved || story.saved;
    if (story.begun_again < 0) continue;
    ranks.push_back(run.numbers[r]);
    if (!first) first = story;
  }
  if (!restarted) return not_triggered("no second attempt, as far as recorded");
  if (!saved) return not_triggered("no state was saved, as far as recorded");
  if (!first) return clean();
  return found({.ranks = ranks,
                .step = first->step,
                .evidence = fmt::format("attempt_{} began with epoch {} and loaded nothing, though "
                                        "the state after epoch {} had been saved",
                                        first->begun_again, first->epoch, first->saved_epoch)});
}

Verdict restart_expected_by_default(const Run& run) {
  bool told = false, saved = false, allowed = false;
  for (const auto* rank : run.ranks) {
    const auto story = story_of(*rank);
    told = told || !story.attempts.empty();
    saved = saved || story.saved;
    allowed = allowed || story.max_restarts > 0;
  }
  if (!told) return not_triggered("how often the job may be started again was not recorded");
  const auto failed =
      std::find_if(run.trace.ends.begin(), run.trace.ends.end(), [](const auto& end) {
        return end.how == "signalled" || end.how == "exited" ||
               (end.how == "raised" && !end.collective);
      });
  if (failed == run.trace.ends.end() || allowed) return clean();
  if (!saved) return clean();  // it could not have gone on
  return found(
      {.ranks = run.numbers,  // how the job was started is no rank's fault
       .evidence = fmt::format("the job saves its state to go on from, and ended when rank {} "
                               "failed ({}): its launcher would start it again 0 times",
                               failed->rank, how(*failed))});
}

}  // namespace
}  // namespace lockstep::diagnose
