// Behaves as told, for the tests of the launcher; no torch.
//
//   fault_rank SCRIPT...
//       as a rank: rank r runs script r, or the last one (script.h)
//   fault_rank launch WORLD_SIZE FOLDER SCRIPT...
//       as a launcher of such ranks; prints the summary
#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/launch/guarded.h>
#include <lockstep/launch/launch.h>
#include <lockstep/trace/writer.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "script.h"

namespace {

using lockstep::fault::await;
using lockstep::fault::hang;
using lockstep::fault::write_pid;
using std::chrono::milliseconds;

// A process of its own session, whose parent is gone and which minds no signal but KILL.
void orphan(const std::string& path) {
  if (fork() == 0) {
    setsid();
    if (fork() == 0) {
      for (const int signal : {SIGTERM, SIGINT, SIGHUP}) std::signal(signal, SIG_IGN);
      write_pid(path);
      hang();
    }
    _exit(0);
  }
  await(path);
}

void print_environment(const std::string& names) {
  std::istringstream list(names);
  for (std::string name; std::getline(list, name, ',');)
    std::cout << name << '=' << lockstep::environment(name).value_or("(unset)") << '\n';
  std::cout.flush();
}

void raise_collective(const std::string& cause) {
  const int rank = lockstep::environment_int("RANK").value_or(0);
  throw lockstep::CollectiveError(rank, "allreduce", 7, milliseconds(5'000), cause);
}

void flood(const std::string& lines) {
  for (int line = 1; line <= std::stoi(lines); ++line) std::cerr << "line " << line << '\n';
}

// A trace, as of a rank whose collectives are observed.
std::unique_ptr<lockstep::trace::Writer> trace_writer;
std::int64_t entered = 0;     // collectives
std::uint64_t inside_of = 0;  // the last one

void open_trace(const std::string& folder) {
  const auto place = lockstep::launch::placement_from_environment().value();
  trace_writer = std::make_unique<lockstep::trace::Writer>(
      folder, lockstep::trace::Participant{place.rank, place.world_size});
}

void enter(const std::string& operation) {
  inside_of = trace_writer->enter(
      {.sequence = ++entered, .group = "0", .op = operation, .dtype = "float32", .sizes = {4}});
}

// Many collectives, each of them short.
void work(const std::string& count) {
  for (int i = 0; i < std::stoi(count); ++i) {
    enter("allreduce");
    std::this_thread::sleep_for(milliseconds(20));
    trace_writer->leave(inside_of, false);
  }
}

lockstep::fault::Steps steps() {
  auto all = lockstep::fault::common_steps();
  all["report"] = [](const std::string& text) {
    lockstep::launch::report_error(std::runtime_error(text));
  };
  all["collective"] = raise_collective;
  all["flood"] = flood;
  all["orphan"] = orphan;
  all["environment"] = print_environment;
  all["trace"] = open_trace;
  all["enter"] = enter;
  all["leave"] = [](const std::string&) { trace_writer->leave(inside_of, false); };
  all["fail"] = [](const std::string&) { trace_writer->leave(inside_of, true); };
  all["work"] = work;
  all["close"] = [](const std::string&) { trace_writer.reset(); };
  return all;
}

int run_as_launcher(const std::string& program, const std::vector<std::string>& arguments) {
  lockstep::launch::LaunchOptions options;
  options.world_size = std::stoi(arguments.at(1));
  options.folder = arguments.at(2);
  options.command.assign(arguments.begin() + 3, arguments.end());
  options.command.insert(options.command.begin(), program);
  options.deadline = milliseconds(30'000);
  options.grace = milliseconds(500);
  const auto result = lockstep::launch::launch(options);
  std::cout << result.summary() << std::endl;
  if (result.interrupted != 0) return 128 + result.interrupted;
  return result.completed() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return lockstep::launch::guarded([&]() -> int {
    const auto place = lockstep::launch::placement_from_environment();
    if (place) {
      lockstep::fault::run_script(steps(), arguments, place->rank);
      return 0;
    }
    if (!arguments.empty() && arguments.front() == "launch")
      return run_as_launcher(argv[0], arguments);
    std::cerr << "usage: fault_rank [launch WORLD_SIZE FOLDER] SCRIPT...\n";
    return lockstep::kUsage;
  });
}
