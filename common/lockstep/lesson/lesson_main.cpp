#include <lockstep/base/end_process.h>
#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/base/exit_code.h>
#include <lockstep/base/file.h>
#include <lockstep/base/text.h>
#include <lockstep/gpu/require_nccl.h>
#include <lockstep/launch/launch.h>
#include <lockstep/lesson/judge.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/lesson/run_variants.h>
#include <lockstep/lesson/select.h>
#include <lockstep/record/failed_collective.h>
#include <lockstep/trace/attempts.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

namespace lockstep {
namespace {

void print_description(const Lesson& lesson) {
  nlohmann::json variants = nlohmann::json::array();
  for (const auto& variant : select_variants(lesson, "all"))
    variants.push_back({{"name", variant.name},
                        {"part", variant.part->name},
                        {"kind", report::to_string(variant.kind)},
                        {"what", variant.what},
                        {"judged_by", variant.judged_by},
                        {"min_world_size", variant.min_world_size}});
  const nlohmann::json text = {{"name", lesson.name},
                               {"title", lesson.title},
                               {"default_world_size", lesson.default_world_size},
                               {"variants", variants}};
  std::cout << text.dump(2) << "\n";
}

RunSettings settings_of(const LessonOptions& options, const Selected& variant,
                        const launch::Placement& place) {
  RunSettings settings;
  settings.variant = variant.name;
  settings.rank = place.rank;
  settings.world_size = options.world_size.value_or(place.world_size);
  settings.seed = options.seed;
  settings.full = options.full;
  settings.operation_timeout = operation_timeout(options);
  settings.backend = options.backend;
  settings.share_gpu = options.share_gpu;
  settings.check = options.check;
  settings.transfers = variant.part->records_transfers;
  settings.alone = variant.alone;
  settings.folder = settings.job_folder = options.folder;
  if (variant.part->max_restarts != nullptr)
    settings.attempt = environment_int("TORCHELASTIC_RESTART_COUNT").value_or(0);
  if (settings.attempt && environment_int("TORCHELASTIC_MAX_RESTARTS").value_or(0) > 0) {
    // Of several agents of torchrun, one may not count a restart that another began (torch 2.11): an
    // attempt in which this rank has left a trace is over.
    const auto folder = [&] { return trace::attempt_folder(options.folder, *settings.attempt); };
    while (std::filesystem::exists(trace::trace_file(folder(), place.rank))) ++*settings.attempt;
    settings.folder = folder();
  }
  return settings;
}

int exit_code_of(const report::LessonReport& report) {
  bool all_skipped = true, late = false;
  for (const auto& variant : report.variants) {
    all_skipped &= variant.verdict == "skipped";
    late |= variant.ending == report::Ending::hang && variant.verdict != "as-expected";
  }
  if (all_skipped) return kSkipped;
  if (late) return kDeadline;
  return report.as_expected() ? kOk : kFinding;
}

// Said before a long run, not after it.
void check_report_path(const std::filesystem::path& file) {
  if (std::filesystem::is_directory(file))
    throw UsageError("--json names a folder: " + file.string() + "; name a file");
  const auto folder = std::filesystem::absolute(file).parent_path();
  if (!std::filesystem::is_directory(folder))
    throw UsageError("--json: there is no folder " + folder.string() + "; make it first");
  if (access(folder.c_str(), W_OK) != 0)
    throw UsageError("--json: no permission to write in " + folder.string());
}

void write_report(const std::filesystem::path& file, const report::LessonReport& report) {
  if (file.empty()) return;
  write_file(file, report::to_json(report));
  std::cout << "report: " << file.string() << std::endl;
}

// Under torchrun, Slurm or Open MPI nobody waits outside to judge: rank 0 does it, once all have written.
int judge_as_rank_zero(const Lesson& lesson, const LessonOptions& options, const Selected& selected,
                       int world_size) {
  auto report = comparison_here(lesson, options);
  report.environment.world_size = world_size;
  report::Variant variant = variant_of(selected, world_size);
  judge_run(selected, options.folder, world_size, options.seed, variant);
  variant.verdict = report::judge(variant);
  std::cout << report::to_text(variant) << std::flush;
  report.variants.push_back(variant);
  write_report(options.json, report);
  return exit_code_of(report);
}

// This process is one rank: of our launcher, or of torchrun, Slurm or Open MPI.
int run_as_rank(const Lesson& lesson, const LessonOptions& options,
                const launch::Placement& place) {
  const auto variants = select_variants(lesson, options.variant);
  if (options.folder.empty() || variants.size() != 1)
    throw UsageError(
        "under a launcher, name one variant with --variant, and with --folder a new folder that "
        "all ranks can reach, for what they record");
  const auto& variant = variants.front();
  const bool with_ranks = variant.part->participants != Participants::devices;
  if (with_ranks && options.world_size && *options.world_size != place.world_size)
    throw UsageError("--world-size " + std::to_string(*options.world_size) +
                     ", and the launcher started " + std::to_string(place.world_size) +
                     " ranks; leave it out");
  if (!options.json.empty() && place.rank == 0) check_report_path(options.json);
  const auto settings = settings_of(options, variant, place);
  std::filesystem::create_directories(settings.folder);
  RankContext context(settings, variant.part->participants);
  const Fault fault(variant.name);
  const auto notes =
      variant.part->notes ? variant.part->notes(context, fault) : std::make_shared<Notes>(context);
  observe(notes);
  try {
    variant.part->run(context, fault);
  } catch (...) {
    try {
      notes->finish();
    } catch (const std::exception&) {  // what ended the training is what is told
    }
    context.write();
    throw;
  }
  notes->finish();
  context.write();
  context.leave();
  const bool ours = environment("LOCKSTEP_ERROR_FILE").has_value();  // our launcher judges
  if (ours || place.rank != 0) return kOk;
  return judge_as_rank_zero(lesson, options, variant, place.world_size);
}

// Before a rank is started. A variant that needs more ranks than the lesson is refused by its ranks, alone.
void require_backend(const Lesson& lesson, const LessonOptions& options) {
  select_variants(lesson, options.variant);  // a wrong name first
  if (options.backend != "nccl") return;
  const int ranks = options.world_size.value_or(lesson.default_world_size);
  const auto facts = gpu::facts_here();
  const int gpus = static_cast<int>(facts.driver.gpus.size());
  gpu::require_nccl(facts, gpu::local_ranks(ranks, gpus, options.share_gpu), options.share_gpu);
  if (options.share_gpu && ranks > gpus) std::cerr << gpu::sharing_text(ranks, gpus) << std::endl;
}

int run_as_launcher(const Lesson& lesson, const LessonOptions& options) {
  if (!options.json.empty()) check_report_path(options.json);
  require_backend(lesson, options);
  const auto report =
      run_variants(lesson, options, std::filesystem::read_symlink("/proc/self/exe"));
  write_report(options.json, report);
  return exit_code_of(report);
}

// Runs `work`; an error becomes one line for a person, the rank's error file, and an exit code.
template <class Work>
int guarded(Work&& work) {
  const auto fail = [](const std::exception& error, int code) {
    const auto tell = [](const std::exception& told) {
      launch::report_error(told);
      std::cerr << filled(std::string("error: ") + told.what(), 2);
    };
    // What a collective throws inside DDP's backward does not say so; it must not outrank the error of the
    // rank that caused it.
    const auto failed = record::failed_collective_of(std::current_exception());
    if (failed && dynamic_cast<const CollectiveError*>(&error) == nullptr)
      tell(CollectiveError(failed->rank, failed->operation, failed->sequence, {}, error.what()));
    else
      tell(error);
    return code;
  };
  try {
    return work();
  } catch (const CommandLineDone&) {
    return kOk;
  } catch (const Interrupted& interrupted) {
    std::cerr << "interrupted; no rank is left\n";
    return 128 + interrupted.signal;
  } catch (const UsageError& error) {
    return fail(error, kUsage);
  } catch (const UnavailableError& error) {
    return fail(error, kSkipped);
  } catch (const c10::Error& error) {
    // Without the C++ stack that what() appends.
    return fail(Error(error.what_without_backtrace()), kCouldNotRun);
  } catch (const std::exception& error) {
    return fail(error, kCouldNotRun);
  }
}

}  // namespace

bool Measured::manifested() const {
  return !(std::abs(observed - expected) <= tolerance);
}

int lesson_main(int argc, char** argv, const Lesson& lesson) {
  end_process(guarded([&] {
    const auto options = parse_command_line(argc, argv, lesson);
    if (options.describe) {
      print_description(lesson);
      return static_cast<int>(kOk);
    }
    const auto place = launch::placement_from_environment();
    return place ? run_as_rank(lesson, options, *place) : run_as_launcher(lesson, options);
  }));
}

}  // namespace lockstep
