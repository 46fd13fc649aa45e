#include <lockstep/base/error.h>
#include <lockstep/gpu/driver.h>
#include <lockstep/lesson/judge.h>
#include <lockstep/lesson/outcome.h>
#include <lockstep/lesson/training.h>
#include <lockstep/trace/attempts.h>
#include <lockstep/trace/reader.h>
#include <lockstep/train/dataset.h>

#include <limits>

namespace lockstep {
namespace {

std::string data_name() {
  std::string which;
  fashion_mnist_or_synthetic(Split::train, 1, &which);
  return which;
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

}  // namespace

report::Variant variant_of(const Selected& selected, int world_size) {
  report::Variant variant;
  variant.name = selected.name;
  variant.part = selected.part->name;
  variant.kind = selected.kind;
  variant.what = selected.what;
  variant.world_size = world_size;
  if (selected.kind == report::Kind::broken && broken_of(*selected.part, selected.name).crashes)
    variant.meant = report::Ending::crash;
  if (selected.part->participants == Participants::devices) variant.participants = "devices";
  return variant;
}

report::LessonReport comparison_here(const Lesson& lesson, const LessonOptions& options) {
  report::LessonReport comparison;
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

void judge_run(const Selected& selected, const std::filesystem::path& folder, int ranks,
               std::uint64_t seed, report::Variant& variant) {
  const auto attempts = trace::attempt_folders(folder);
  Outcomes seen;
  for (int rank = 0; rank < ranks; ++rank) {
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
  if (selected.kind == report::Kind::correct && variant.reference_losses.empty())
    variant.reference_losses = one_process_losses(seen, seed);
  for (const auto& slug : selected.judged_by) {
    const auto& broken = broken_of(*selected.part, slug);
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

}  // namespace lockstep
