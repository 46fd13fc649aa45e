#include <lockstep/base/countdown.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/base/text.h>
#include <lockstep/gpu/driver.h>
#include <lockstep/launch/interrupt.h>
#include <lockstep/lesson/compare.h>
#include <lockstep/lesson/outcome.h>
#include <lockstep/lesson/training.h>
#include <lockstep/matrix/cases.h>
#include <lockstep/matrix/expected.h>
#include <lockstep/report/earlier.h>
#include <lockstep/supervise/attempts.h>
#include <lockstep/trace/attempts.h>
#include <lockstep/trace/reader.h>
#include <lockstep/train/dataset.h>

#include <iostream>
#include <limits>
#include <set>
#include <utility>

namespace lockstep {
namespace {

// A rank that lacks what it needs says so with this exit code (lesson_main).
constexpr int kSkipped = 77;

std::string data_name() {
  std::string which;
  fashion_mnist_or_synthetic(Split::train, 1, &which);
  return which;
}

const Broken& broken_form(const Part& part, const std::string& slug) {
  for (const auto& broken : part.broken)
    if (broken.slug == slug) return broken;
  throw Error("the part " + part.name + " has no pitfall " + slug);
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

// What the same rank saw in a later attempt.
void append(Outcome& outcome, const Outcome& later) {
  append(outcome.losses, later.losses);
  append(outcome.reference_losses, later.reference_losses);
  append(outcome.accuracy, later.accuracy);
  for (const auto& [name, values] : later.figures) append(outcome.figures[name], values);
  for (const auto& [phase, passes] : later.ids) append(outcome.ids[phase], passes);
}

// A run that broke off may lack what the oracle reads: then nothing was observed, which is never right.
Measured measure(const Oracle& oracle, const Outcomes& outcomes) {
  try {
    return oracle.measure(outcomes);
  } catch (const std::exception&) {
    return {.observed = std::numeric_limits<double>::quiet_NaN()};
  }
}

// Where this form's run leaves its files: a folder the user asked for, or a temporary one.
std::filesystem::path kept_folder(const LessonOptions& options, const Lesson& lesson,
                                  const std::string& form) {
  const auto folder = std::filesystem::absolute(options.trace) / lesson.name / form;
  if (std::filesystem::exists(folder))
    throw UsageError("there are traces already in " + folder.string() +
                     "; name a new folder with --trace");
  std::filesystem::create_directories(folder);
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  return folder;
}

// What is known of this run: its oracles decide whether it has a pitfall, and which.
matrix::Truth truth_of(const Selected& selected, const Lesson& lesson, const LessonOptions& options,
                       const report::Variant& variant) {
  matrix::Truth truth;
  truth.name = lesson.name + "/" + selected.name + " (" + std::to_string(variant.world_size) + " " +
               variant.participants + ", seed " + std::to_string(options.seed) + ")";
  truth.family = lesson.name.substr(0, 2);
  for (const auto& oracle : variant.oracles)
    if (oracle.manifested && truth.pitfall.empty()) truth.pitfall = oracle.pitfall;
  matrix::fill_in_expected(truth,
                           std::filesystem::path(LOCKSTEP_SOURCE_DIR) / "lessons/truths.json",
                           lesson.name, variant.world_size);
  return truth;
}

// More than the ranks' own timeout: they may say first what they saw, a checked one after a second.
constexpr std::chrono::milliseconds kAfterTimeout{1500};

// One result for each attempt; a part that is not started again has one.
std::vector<supervise::Result> supervise_form(const Selected& selected,
                                              const LessonOptions& options, int world_size,
                                              const std::string& program,
                                              const std::filesystem::path& folder) {
  launch::LaunchOptions job;
  job.command = rank_arguments(options, selected.name, world_size, folder);
  job.command.insert(job.command.begin(), program);
  job.world_size = selected.part->participants == Participants::devices ? 1 : world_size;
  job.folder = folder;
  job.deadline = std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_s * 1000));
  const supervise::Options supervised{job, operation_timeout(options) + kAfterTimeout};
  if (selected.part->max_restarts != nullptr)
    return supervise::supervise_attempts(supervised,
                                         selected.part->max_restarts(Fault(selected.name)));
  std::vector<supervise::Result> results;
  results.push_back(supervise::supervise(supervised));
  return results;
}

// Of several attempts, the last one's ending.
void describe_ending(const std::vector<supervise::Result>& attempts, report::Variant& variant) {
  using report::Ending;
  for (const auto& attempt : attempts)
    variant.seconds += std::chrono::duration<double>(attempt.launch.wall).count();
  const auto& last = attempts.back();
  if (last.launch.completed()) return;
  variant.reason = last.launch.summary();
  const bool hung = last.launch.deadline_expired || last.launch.stood_still;
  variant.ending = hung ? Ending::hang : Ending::crash;
  if (last.standstill) {
    variant.reason += "\n" + diagnose::to_text(*last.standstill);
    variant.stop = report::stop_of(*last.standstill);
  }
  if (!last.launch.root_cause) return;
  const auto& cause = last.launch.ranks.at(static_cast<std::size_t>(*last.launch.root_cause));
  if (cause.exit_code == kSkipped) {
    variant.ending = Ending::skipped;
    variant.reason = cause.error;
  }
}

int gpus_here() {
  return static_cast<int>(gpu::ask_driver().gpus.size());
}

// Empty where it can show.
std::string why_not_shown(const Selected& selected, const LessonOptions& options, int world_size) {
  if (world_size < selected.min_world_size)
    return "shows on " + std::to_string(selected.min_world_size) + " ranks or more; this run has " +
           std::to_string(world_size);
  if (selected.own_gpus && options.share_gpu && world_size > gpus_here())
    return "shows where each rank has a GPU of its own; these share (--share-gpu)";
  return "";
}

report::Variant run_form(const Selected& selected, const Lesson& lesson,
                         const LessonOptions& options, int world_size, const std::string& program) {
  auto variant = variant_of(selected, world_size);
  variant.reason = why_not_shown(selected, options, world_size);
  if (!variant.reason.empty()) {
    variant.ending = report::Ending::skipped;
    variant.verdict = report::judge(variant);
    return variant;
  }
  const TemporaryFolder temporary("lockstep");
  const auto folder =
      options.trace.empty() ? temporary.path() : kept_folder(options, lesson, selected.name);
  const auto attempts = supervise_form(selected, options, world_size, program, folder);
  const auto& last = attempts.back().launch;
  if (last.interrupted != 0) throw Interrupted{last.interrupted};
  describe_ending(attempts, variant);
  if (variant.ending != report::Ending::skipped)
    judge_run(selected, folder, static_cast<int>(last.ranks.size()), options.seed, variant);
  if (!options.trace.empty() && variant.ending != report::Ending::skipped)
    matrix::write_truth(folder, truth_of(selected, lesson, options, variant));
  variant.verdict = report::judge(variant);
  return variant;
}

// A variant that cannot show on the lesson's default number of ranks gets as many as it needs,
// unless the user has named a number.
int world_size_for(const Selected& selected, const Lesson& lesson, const LessonOptions& options) {
  return options.world_size.value_or(std::max(lesson.default_world_size, selected.min_world_size));
}

// How long each one took when it last ran, where a report tells.
std::vector<Countdown::Part> parts_of(const std::vector<Selected>& forms,
                                      const LessonOptions& options) {
  const auto measured =
      report::seconds_by_form(options.earlier.empty() ? options.json : options.earlier);
  std::vector<Countdown::Part> parts;
  for (const auto& form : forms) {
    const auto found = measured.find(form.name);
    parts.push_back({form.name, found == measured.end() ? std::optional<double>() : found->second});
  }
  return parts;
}

}  // namespace

std::vector<Selected> select_forms(const Lesson& lesson, const std::string& variant) {
  std::vector<Selected> forms;
  for (const auto& part : lesson.parts) {
    Selected correct{
        &part, report::Form::correct, part.correct_name(lesson.parts.size() == 1), "", 1, {}};
    for (const auto& broken : part.broken) correct.judged_by.push_back(broken.slug);
    forms.push_back(correct);
    for (const auto& broken : part.broken)
      forms.push_back({&part,
                       report::Form::broken,
                       broken.slug,
                       broken.what,
                       broken.min_world_size,
                       {broken.slug},
                       broken.own_gpus});
    for (const auto& near : part.near_misses)
      forms.push_back({&part,
                       report::Form::near_miss,
                       near.name,
                       "naive check: " + near.naive_check,
                       broken_form(part, near.slug).min_world_size,
                       {near.slug}});
  }
  if (variant == "all") return forms;
  std::vector<Selected> chosen;
  std::string names;
  for (const auto& form : forms) {
    const bool all_correct = variant == "correct" && form.form == report::Form::correct;
    if (all_correct || form.name == variant) chosen.push_back(form);
    names += "\n  " + form.name;
  }
  if (chosen.empty())
    throw UsageError("there is no form \"" + variant + "\" in " + lesson.name +
                     "; there are:" + names);
  return chosen;
}

void judge_run(const Selected& selected, const std::filesystem::path& folder, int outcomes,
               std::uint64_t seed, report::Variant& variant) {
  const auto attempts = trace::attempt_folders(folder);
  Outcomes seen;
  for (int rank = 0; rank < outcomes; ++rank) {
    seen.emplace_back();
    for (const auto& attempt : attempts) {
      const auto file = attempt / ("rank_" + std::to_string(rank) + ".outcome.json");
      // A rank that was killed leaves none: the oracles see an empty one.
      if (std::filesystem::exists(file)) append(seen.back(), read_outcome(file));
    }
    variant.losses.push_back(seen.back().losses);
    variant.accuracy.push_back(seen.back().accuracy);
  }
  variant.reference_losses = seen.front().reference_losses;
  if (selected.form == report::Form::correct && variant.reference_losses.empty())
    variant.reference_losses = one_process_losses(seen, seed);
  for (const auto& slug : selected.judged_by) {
    const auto& broken = broken_form(*selected.part, slug);
    if (variant.world_size < broken.min_world_size) continue;  // what it measures needs more ranks
    const auto measured = measure(broken.oracle, seen);
    variant.oracles.push_back({slug, broken.oracle.metric, measured.expected, measured.observed,
                               measured.tolerance, measured.manifested()});
  }
  try {
    const auto trace = trace::read_job(folder);
    variant.findings = diagnose::diagnose(trace).findings;
    variant.pictures = report::pictures_of(trace);
  } catch (const Error& error) {
    variant.reason +=
        (variant.reason.empty() ? "" : "\n") + std::string("no diagnosis: ") + error.what();
  }
}

report::Variant variant_of(const Selected& selected, int world_size) {
  report::Variant variant;
  variant.name = selected.name;
  variant.part = selected.part->name;
  variant.form = selected.form;
  variant.what = selected.what;
  variant.world_size = world_size;
  if (selected.form == report::Form::broken && broken_form(*selected.part, selected.name).crashes)
    variant.meant = report::Ending::crash;
  if (selected.part->participants == Participants::devices) variant.participants = "devices";
  return variant;
}

report::Comparison comparison_here(const Lesson& lesson, const LessonOptions& options) {
  report::Comparison comparison;
  comparison.lesson = lesson.name;
  comparison.title = lesson.title;
  comparison.environment = report::environment_here(LOCKSTEP_SOURCE_DIR);
  comparison.environment.torch_version = TORCH_VERSION;
  comparison.environment.backend = options.backend;
  comparison.environment.world_size = options.world_size.value_or(lesson.default_world_size);
  comparison.environment.seed = options.seed;
  if (options.backend == "nccl")  // else nobody asks: a rank over Gloo loads nothing of CUDA's
    for (const auto& gpu : gpu::ask_driver().gpus) comparison.environment.gpus.push_back(gpu.name);
  comparison.environment.data = data_name();
  return comparison;
}

report::Comparison compare(const Lesson& lesson, const LessonOptions& options,
                           const std::string& program) {
  const auto forms = select_forms(lesson, options.variant);
  auto comparison = comparison_here(lesson, options);
  std::cout << filled(lesson.name + ": " + lesson.title, 2) << "  on "
            << (options.backend == "gloo" ? "the CPU: no GPU is needed, but where a form says so"
                : options.share_gpu       ? "GPUs, which ranks share where there are fewer"
                                          : "GPUs, one a rank")
            << std::endl;
  Countdown countdown("form", parts_of(forms, options));
  // One that comes while a run is judged ends the next one, and no folder stays behind.
  const launch::HeldInterrupts held;
  int announced = 0;
  std::set<std::string> reasons;  // why forms were skipped: often one reason for many
  for (const auto& selected : forms) {
    const int world_size = world_size_for(selected, lesson, options);
    countdown.next();
    const auto variant = run_form(selected, lesson, options, world_size, program);
    countdown.clear();
    if (std::exchange(announced, world_size) != world_size) {
      auto participants = variant.participants;  // "ranks", "devices"
      if (world_size == 1) participants.pop_back();
      std::cout << "  " << world_size << " " << participants << "\n";
    }
    auto told = variant;
    if (variant.ending == report::Ending::skipped && !reasons.insert(variant.reason).second)
      told.reason = "skipped, as above";
    std::cout << report::to_text(told) << std::flush;
    comparison.variants.push_back(variant);
  }
  std::cout << report::to_text(comparison) << std::flush;
  return comparison;
}

}  // namespace lockstep
