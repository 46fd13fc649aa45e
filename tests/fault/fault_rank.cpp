// Behaves as told, for the tests of the launcher; no torch.
//
//   fault_rank SCRIPT...
//       as a rank: rank r runs script r, or the last one
//   fault_rank launch WORLD_SIZE FOLDER SCRIPT...
//       as a launcher of such ranks; prints the summary
//
// A script is a list of steps, "name" or "name:argument", separated by ';'. At its end the rank
// exits 0.
#include <lockstep/base/clock.h>
#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/launch/launch.h>
#include <lockstep/trace/writer.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

using std::chrono::milliseconds;
constexpr std::int64_t kPatience = 20'000'000'000;

[[noreturn]] void hang() {
  for (;;) pause();
}

// Until the file is there.
void await(const std::string& path) {
  for (const std::int64_t end = lockstep::monotonic_ns() + kPatience;
       lockstep::monotonic_ns() < end;) {
    if (std::filesystem::exists(path)) return;
    std::this_thread::sleep_for(milliseconds(2));
  }
  throw lockstep::Error("nobody wrote " + path);
}

void write_pid(const std::string& path) {
  lockstep::write_file(path, std::to_string(getpid()));
}

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

// Even where a sanitizer would turn it into an exit.
void segfault(const std::string&) {
  std::signal(SIGSEGV, SIG_DFL);
  raise(SIGSEGV);
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

const std::map<std::string, std::function<void(const std::string&)>> kSteps{
    {"exit", [](const std::string& code) { _exit(std::stoi(code)); }},
    {"raise", [](const std::string& text) { throw std::runtime_error(text); }},
    {"report",
     [](const std::string& text) { lockstep::launch::report_error(std::runtime_error(text)); }},
    {"collective", raise_collective},
    {"flood", flood},
    {"signal", [](const std::string& signal) { raise(std::stoi(signal)); }},
    {"segfault", segfault},
    {"ignore", [](const std::string& signal) { std::signal(std::stoi(signal), SIG_IGN); }},
    {"hang", [](const std::string&) { hang(); }},
    {"await", await},
    {"pid", write_pid},
    {"orphan", orphan},
    {"complain", [](const std::string& text) { std::cerr << text << std::endl; }},
    {"environment", print_environment},
    {"trace", open_trace},
    {"enter", enter},
    {"leave", [](const std::string&) { trace_writer->leave(inside_of, false); }},
    {"fail", [](const std::string&) { trace_writer->leave(inside_of, true); }},
    {"work", work},
    {"close", [](const std::string&) { trace_writer.reset(); }},
};

int run_as_rank(const std::vector<std::string>& scripts, int rank) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const auto index = std::min(static_cast<std::size_t>(rank), scripts.size() - 1);
  std::istringstream script(scripts.at(index));
  for (std::string step; std::getline(script, step, ';');) {
    const auto colon = step.find(':');
    const std::string argument = colon == std::string::npos ? "" : step.substr(colon + 1);
    kSteps.at(step.substr(0, colon))(argument);
  }
  return 0;
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
  try {
    const auto place = lockstep::launch::placement_from_environment();
    if (place) return run_as_rank(arguments, place->rank);
    if (!arguments.empty() && arguments.front() == "launch")
      return run_as_launcher(argv[0], arguments);
    std::cerr << "usage: fault_rank [launch WORLD_SIZE FOLDER] SCRIPT...\n";
    return 2;
  } catch (const std::exception& error) {
    lockstep::launch::report_error(error);
    std::cerr << error.what() << '\n';
    return 3;
  }
}
