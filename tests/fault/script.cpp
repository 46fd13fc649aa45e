#include "script.h"

#include <lockstep/base/clock.h>
#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace lockstep::fault {
namespace {

constexpr std::int64_t kPatience = 20'000'000'000;

void until(const std::function<bool()>& condition, const std::string& otherwise) {
  for (const std::int64_t end = monotonic_ns() + kPatience; monotonic_ns() < end;) {
    if (condition()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  throw Error(otherwise);
}

void await_end(const std::string& path) {
  await(path);
  const auto pid = std::stoi(read_file(path));
  until([&] { return gone(pid); }, "process " + std::to_string(pid) + " does not end");
}

// In the job's folder, which every attempt has for itself.
void meet(const std::string& ranks) {
  const auto folder =
      std::filesystem::path(environment("LOCKSTEP_ERROR_FILE").value()).parent_path();
  const auto here = [&](const std::string& rank) { return (folder / ("here_" + rank)).string(); };
  write_pid(here(environment("RANK").value()));
  std::istringstream named(ranks);
  for (std::string rank; std::getline(named, rank, ',');) await(here(rank));
  if (!ranks.empty()) return;
  for (int rank = 0; rank < environment_int("WORLD_SIZE").value(); ++rank)
    await(here(std::to_string(rank)));
}

// Even where a sanitizer would turn it into an exit.
void segfault(const std::string&) {
  std::signal(SIGSEGV, SIG_DFL);
  raise(SIGSEGV);
}

}  // namespace

bool gone(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(in, text, '\0');
  const auto bracket = text.rfind(')');
  return bracket == std::string::npos || text.at(bracket + 2) == 'Z' || text.at(bracket + 2) == 'X';
}

void hang() {
  for (;;) pause();
}

void await(const std::string& path) {
  until([&] { return std::filesystem::exists(path); }, "nobody wrote " + path);
}

void write_pid(const std::string& path) {
  write_file(path, std::to_string(getpid()));
}

Steps common_steps() {
  return {
      {"exit", [](const std::string& code) { _exit(std::stoi(code)); }},
      {"raise", [](const std::string& text) { throw std::runtime_error(text); }},
      {"signal", [](const std::string& signal) { raise(std::stoi(signal)); }},
      {"segfault", segfault},
      {"ignore", [](const std::string& signal) { std::signal(std::stoi(signal), SIG_IGN); }},
      {"hang", [](const std::string&) { hang(); }},
      {"complain", [](const std::string& text) { std::cerr << text << std::endl; }},
      {"await", await},
      {"ended", await_end},
      {"meet", meet},
      {"pid", write_pid},
      {"clock", [](const std::string& path) { write_file(path, std::to_string(monotonic_ns())); }},
  };
}

void run_script(const Steps& steps, const std::vector<std::string>& scripts, int rank) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const auto index = std::min(static_cast<std::size_t>(rank), scripts.size() - 1);
  std::istringstream script(scripts.at(index));
  for (std::string step; std::getline(script, step, ';');) {
    const auto colon = step.find(':');
    const std::string argument = colon == std::string::npos ? "" : step.substr(colon + 1);
    steps.at(step.substr(0, colon))(argument);
  }
}

}  // namespace lockstep::fault
