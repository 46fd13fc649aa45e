// Runs a program as a user would, and keeps what it said.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lockstep::testing {

struct Finished {
  int exit_code = 0;  // 128 + signal where one ended it
  std::string out;
  std::string err;
};

// Standard input is empty; `environment` is added to this process's. CTest's own TIMEOUT is the
// deadline.
Finished run(const std::vector<std::string>& command,
             const std::map<std::string, std::string>& environment = {});

// The environment in which a program loads `library` before its own, and looks for others in `folder`,
// too. By name and folder, since the loader splits LD_PRELOAD at spaces.
std::map<std::string, std::string> preloading(const std::filesystem::path& library,
                                              const std::string& folder = "");

// What was filled to the terminal's width, without its line breaks.
std::string unfilled(const std::string& text);

}  // namespace lockstep::testing
