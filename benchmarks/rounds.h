// The command line of a benchmark of rounds: NAME [FILE] [--rounds N].
#pragma once

#include <lockstep/launch/guarded.h>

#include <CLI/CLI.hpp>
#include <string>

namespace lockstep::benchmark {

struct Rounds {
  std::string file;  // for the figures: in the checkout's reports/out, unless it is named
  int rounds = 16;
  const char* about;
  const char* each;  // what a round is
};

// main: calls run(rounds, file).
template <class Run>
int main_of(int argc, char** argv, Rounds settings, const Run& run) {
  std::string file = LOCKSTEP_SOURCE_DIR "/reports/out/" + settings.file;
  CLI::App app(settings.about);
  app.add_option("file", file, "where to write the figures (JSON)");
  app.add_option("--rounds", settings.rounds, settings.each)->check(CLI::Range(10, 1000));
  CLI11_PARSE(app, argc, argv);
  return launch::guarded([&] { run(settings.rounds, file); });
}

}  // namespace lockstep::benchmark
