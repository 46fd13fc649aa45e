// mutant list                                        every operator and program, as JSON
// mutant run PROGRAM OPERATOR --folder F [--world-size W] [--seed S]
//
// Runs a mutated program on W ranks of its own, asks the oracle, and leaves in F (new) the ranks' traces, with a
// truth.json beside them for ./lockstep matrix, and verdict.json with what the oracle said.
#include <lockstep/base/error.h>
#include <lockstep/base/exit_code.h>
#include <lockstep/base/file.h>
#include <lockstep/launch/supervise.h>
#include <lockstep/lesson/truth.h>
#include <lockstep/record/observed_backend.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "operators.h"

namespace lockstep::mutants {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::chrono::milliseconds kTimeout{4'000};  // of an operation
constexpr std::chrono::milliseconds kPatience{
    5'000};  // of the supervisor with a rank inside of one
constexpr std::chrono::milliseconds kDeadline{60'000};

struct Options {
  std::string program, mutation;
  fs::path folder;
  int world_size = 2;
  std::uint64_t seed = 0;
};

Program program_of(const Options& options) {
  for (auto& program : programs())
    if (program.name == options.program) {
      auto chosen = program;
      if (const auto& choose = find_operator(options.mutation).choose) choose(chosen);
      return chosen;
    }
  throw UsageError("there is no program " + options.program + ": mutant list names them");
}

const char* to_string(Engine engine) {
  switch (engine) {
    case Engine::ddp:
      return "ddp";
    case Engine::by_hand:
      return "by_hand";
    case Engine::sharded:
      return "sharded";
  }
  return "";
}

void list() {
  json all{{"programs", json::array()}, {"operators", json::array()}};
  for (const auto& program : programs())
    all["programs"].push_back({{"name", program.name}, {"engine", to_string(program.engine)}});
  for (const auto& one : operators()) {
    json fits = json::array();
    for (const auto& program : programs())
      if (one.fits(program.engine)) fits.push_back(program.name);
    all["operators"].push_back(
        {{"name", one.name}, {"label", one.fault.label}, {"half", one.half()}, {"programs", fits}});
  }
  std::cout << all.dump(1) << "\n";
}

void run_rank(const Options& options, const launch::Placement& place) {
  const auto& mutation = find_operator(options.mutation);
  auto writer = std::make_shared<trace::Writer>(
      options.folder, trace::Participant{.rank = place.rank, .world_size = place.world_size});
  auto tampering = std::make_shared<Tampering>();
  InitOptions init;
  init.timeout = kTimeout;
  init.decorate = [&](BackendPtr backend, const StorePtr&) -> BackendPtr {
    return c10::make_intrusive<FaultyBackend>(record::observe(std::move(backend), writer),
                                              tampering);
  };
  auto group = init_process_group(init);
  record::Probes probes(writer);
  probes.tell(record::placement_of_this_process());
  auto parts =
      make_parts(program_of(options), {place.rank, place.world_size, options.seed, kTimeout}, group,
                 tampering, probes);
  mutation.apply(*parts);
  save(train(*parts), options.folder, place.rank);
  barrier(*group);
  parts.reset();
  destroy_process_group(group);
}

launch::Supervised run_ranks(const Options& options, char** argv, int argc) {
  fs::create_directories(options.folder);
  fs::permissions(options.folder, fs::perms::owner_all);
  launch::SuperviseOptions job;
  job.job.command.assign(argv, argv + argc);
  job.job.command.front() = fs::read_symlink("/proc/self/exe");
  job.job.world_size = options.world_size;
  job.job.folder = options.folder;
  job.job.deadline = kDeadline;
  job.patience = kPatience;
  return launch::supervise(job);
}

std::map<std::string, std::string> judge(const Options& options, const launch::Supervised& result) {
  if (!result.launch.completed()) return {{"ended", result.launch.summary()}};
  std::vector<Seen> seen;
  for (int rank = 0; rank < options.world_size; ++rank) seen.push_back(load(options.folder, rank));
  return check(program_of(options), seen, find_operator(options.mutation).tolerance);
}

void run_mutant(const Options& options, char** argv, int argc) {
  const auto& mutation = find_operator(options.mutation);
  const auto program = program_of(options);
  if (!mutation.fits(program.engine))
    throw UsageError(mutation.name + " cannot be applied to " + program.name);
  if (fs::exists(options.folder))
    throw UsageError("--folder: there is " + options.folder.string() + " already; name a new one");
  const auto failed = judge(options, run_ranks(options, argv, argc));
  Truth truth;
  truth.name = program.name + "." + mutation.name + "." + std::to_string(options.world_size) + "." +
               std::to_string(options.seed);
  truth.group = program.name;
  truth.pitfall = mutation.label(program.engine, failed);
  write_truth(options.folder, truth);
  const json verdict{{"operator", mutation.name},
                     {"program", program.name},
                     {"fault", mutation.fault.label},
                     {"label", truth.pitfall},
                     {"failed", failed}};
  write_file(options.folder / "verdict.json", verdict.dump(1) + "\n");
  std::cout << verdict.dump() << "\n";
}

int run(int argc, char** argv) {
  CLI::App app("Training programs, each changed in one step; see the top of mutant_main.cpp");
  app.require_subcommand(1);
  auto* listing = app.add_subcommand("list", "every operator and program, as JSON");
  auto* running = app.add_subcommand("run", "one program under one operator");
  Options options;
  running->add_option("program", options.program)->required();
  running->add_option("operator", options.mutation)->required();
  running->add_option("--folder", options.folder, "a new folder for what it leaves")->required();
  running->add_option("--world-size", options.world_size)->check(CLI::Range(2, 64));
  running->add_option("--seed", options.seed);
  CLI11_PARSE(app, argc, argv);
  if (listing->parsed())
    list();
  else if (const auto place = launch::placement_from_environment())
    run_rank(options, *place);
  else
    run_mutant(options, argv, argc);
  return 0;
}

}  // namespace
}  // namespace lockstep::mutants

int main(int argc, char** argv) {
  try {
    return lockstep::mutants::run(argc, argv);
  } catch (const lockstep::UsageError& error) {
    std::cerr << "error: " << error.what() << "\n";
    return lockstep::kUsage;
  } catch (const std::exception& error) {
    lockstep::launch::report_error(error);
    std::cerr << "error: " << error.what() << "\n";
    return lockstep::kCouldNotRun;
  }
}
