#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <lockstep/base/countdown.h>
#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/base/exit_code.h>
#include <lockstep/base/file.h>
#include <lockstep/base/processors.h>
#include <lockstep/base/text.h>
#include <lockstep/gpu/driver.h>
#include <lockstep/launch/attempts.h>
#include <lockstep/launch/interrupt.h>
#include <lockstep/lesson/judge.h>
#include <lockstep/lesson/run_variants.h>
#include <lockstep/lesson/select.h>
#include <lockstep/lesson/truth.h>
#include <lockstep/report/earlier.h>
#include <lockstep/report/facts.h>

#include <cstdlib>
#include <iostream>
#include <set>
#include <utility>

namespace lockstep {
namespace {

// Where this variant's run leaves its files: a folder the user asked for, or a temporary one.
std::filesystem::path kept_folder(const LessonOptions& options, const Lesson& lesson,
                                  const std::string& variant) {
  const auto folder = std::filesystem::absolute(options.trace) / lesson.name / variant;
  if (std::filesystem::exists(folder))
    throw UsageError("there are traces already in " + folder.string() +
                     "; name a new folder with --trace");
  std::filesystem::create_directories(folder);
  std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
  return folder;
}

// What is known of this run: its oracles decide whether it has a pitfall, and which.
Truth truth_of(const Selected& selected, const Lesson& lesson, const LessonOptions& options,
               const report::Variant& variant) {
  Truth truth;
  truth.name = lesson.name + "/" + selected.name + " (" + std::to_string(variant.world_size) + " " +
               variant.participants + ", seed " + std::to_string(options.seed) + ")";
  truth.group = lesson.name.substr(0, 2);
  for (const auto& oracle : variant.oracles)
    if (oracle.manifested && truth.pitfall.empty()) truth.pitfall = oracle.pitfall;
  // A program may have outlived its sources.
  const std::filesystem::path source = LOCKSTEP_SOURCE_DIR;
  if (!std::filesystem::exists(report::page_file(source, lesson.name, truth.pitfall))) return truth;
  const auto facts =
      report::facts_of(report::read_page(source, lesson.name, truth.pitfall), variant.world_size);
  truth.ranks = facts.ranks;
  truth.step = facts.step;
  return truth;
}

// More than the ranks' own timeout: they may say first what they saw, a checked one after a second.
constexpr std::chrono::milliseconds kAfterTimeout{1500};

// What a rank does that is a fork of this process. OpenMP read the number of threads when it was loaded, for the launcher.
// Its random numbers begin as in a new process, whatever oracles have drawn here.
int go_on_as_rank(const Lesson& lesson, std::vector<std::string> arguments) {
  auto generator = at::detail::getDefaultCPUGenerator();
  generator.set_current_seed(c10::default_rng_seed_val);
  const int threads = std::atoi(environment("OMP_NUM_THREADS").value_or("").c_str());
  if (threads > 0) at::set_num_threads(threads);
  std::vector<char*> pointers;
  for (auto& argument : arguments) pointers.push_back(argument.data());
  return lesson_main(static_cast<int>(pointers.size()), pointers.data(), lesson);
}

// One result for each attempt; a part that is not started again has one.
std::vector<launch::Supervised> supervise_variant(const Selected& selected, const Lesson& lesson,
                                                  const LessonOptions& options, int world_size,
                                                  const std::string& program,
                                                  const std::filesystem::path& folder) {
  launch::LaunchOptions job;
  job.command = rank_arguments(options, selected.name, world_size, folder);
  job.command.insert(job.command.begin(), program);
  // An oracle that seeds random numbers here makes torch decide, before NCCL is loaded, that there is no CUDA. A fork would
  // inherit that.
  if (options.backend != "nccl")
    job.go_on = [&lesson, command = job.command] { return go_on_as_rank(lesson, command); };
  job.world_size = world_size;
  if (selected.part->participants == Participants::devices) {
    // One process, with a thread for each device: they share the processors as ranks would.
    job.world_size = 1;
    if (!environment("OMP_NUM_THREADS"))
      job.environment["OMP_NUM_THREADS"] = std::to_string(processors_for_each_of(world_size));
  }
  job.folder = folder;
  job.deadline = std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_s * 1000));
  const launch::SuperviseOptions supervised{job, operation_timeout(options) + kAfterTimeout};
  if (selected.part->max_restarts != nullptr)
    return launch::supervise_attempts(supervised,
                                      selected.part->max_restarts(Fault(selected.name)));
  std::vector<launch::Supervised> results;
  results.push_back(launch::supervise(supervised));
  return results;
}

// Of several attempts, the last one's ending.
void describe_ending(const std::vector<launch::Supervised>& attempts, report::Variant& variant) {
  using report::Ending;
  for (const auto& attempt : attempts)
    variant.seconds += std::chrono::duration<double>(attempt.launch.wall).count();
  const auto& last = attempts.back();
  if (last.launch.completed()) return;
  variant.reason = last.launch.summary();
  const bool hung = last.launch.deadline_expired || last.launch.stalled;
  variant.ending = hung ? Ending::hang : Ending::crash;
  if (last.stall) {
    variant.reason += "\n" + diagnose::to_text(*last.stall);
    variant.stall = report::stall_of(*last.stall);
  }
  if (!last.launch.root_cause) return;
  const auto& cause = last.launch.ranks.at(static_cast<std::size_t>(*last.launch.root_cause));
  if (cause.exit_code == kSkipped) {
    variant.ending = Ending::skipped;
    variant.reason = cause.error;
  }
}

// Empty where it can show.
std::string why_not_shown(const Selected& selected, const LessonOptions& options, int world_size) {
  if (world_size < selected.min_world_size)
    return "shows on " + std::to_string(selected.min_world_size) + " ranks or more; this run has " +
           std::to_string(world_size);
  if (selected.own_gpus && options.share_gpu && world_size > gpu::gpus_here())
    return "shows where each rank has a GPU of its own; these share (--share-gpu)";
  return "";
}

report::Variant run_variant(const Selected& selected, const Lesson& lesson,
                            const LessonOptions& options, int world_size,
                            const std::string& program) {
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
  const auto attempts = supervise_variant(selected, lesson, options, world_size, program, folder);
  const auto& last = attempts.back().launch;
  if (last.interrupted != 0) throw Interrupted{last.interrupted};
  describe_ending(attempts, variant);
  if (variant.ending != report::Ending::skipped)
    judge_run(selected, folder, static_cast<int>(last.ranks.size()), options.seed, variant);
  if (!options.trace.empty() && variant.ending != report::Ending::skipped)
    write_truth(folder, truth_of(selected, lesson, options, variant));
  variant.verdict = report::judge(variant);
  return variant;
}

// A variant that cannot show on the lesson's default number of ranks gets as many as it needs,
// unless the user has named a number.
int world_size_for(const Selected& selected, const Lesson& lesson, const LessonOptions& options) {
  return options.world_size.value_or(std::max(lesson.default_world_size, selected.min_world_size));
}

// How long each one took when it last ran, where a report tells.
std::vector<Countdown::Item> parts_of(const std::vector<Selected>& variants,
                                      const LessonOptions& options) {
  const auto measured =
      report::seconds_by_variant(options.earlier.empty() ? options.json : options.earlier);
  std::vector<Countdown::Item> parts;
  for (const auto& variant : variants) {
    const auto found = measured.find(variant.name);
    parts.push_back(
        {variant.name, found == measured.end() ? std::optional<double>() : found->second});
  }
  return parts;
}

}  // namespace

report::LessonReport run_variants(const Lesson& lesson, const LessonOptions& options,
                                  const std::string& program) {
  // What oracles train here starts no threads: a process with threads is not forked into ranks.
  at::set_num_threads(1);
  const auto variants = select_variants(lesson, options.variant);
  auto comparison = comparison_here(lesson, options);
  std::cout << filled(lesson.name + ": " + lesson.title, 2) << "  on "
            << (options.backend == "gloo" ? "the CPU: no GPU is needed, but where a variant says so"
                : options.share_gpu       ? "GPUs, which ranks share where there are fewer"
                                          : "GPUs, one a rank")
            << std::endl;
  Countdown countdown("variant", parts_of(variants, options));
  // One that comes while a run is judged ends the next one, and no folder stays behind.
  const launch::HeldInterrupts held;
  int announced = 0;
  std::set<std::string> reasons;  // why variants were skipped: often one reason for many
  for (const auto& selected : variants) {
    const int world_size = world_size_for(selected, lesson, options);
    countdown.next();
    const auto variant = run_variant(selected, lesson, options, world_size, program);
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
