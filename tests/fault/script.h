// What a misbehaving rank does is a script: a list of steps, "name" or "name:argument", separated by ';'. Rank r
// runs script r, or the last one; at its end the rank exits 0. Ordered through files, never through time.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace lockstep::fault {

using Steps = std::map<std::string, std::function<void(const std::string& argument)>>;

// Steps of every kind of rank:
//   exit:CODE  raise:TEXT  signal:NUMBER  segfault  ignore:NUMBER  hang  complain:TEXT
//   pid:FILE     writes the process's id there
//   clock:FILE   writes monotonic_ns() there
//   await:FILE   until it is there
//   meet         until all ranks of the job are there, however long it takes each of them to start; meet:1,2
//                until those are
//   ended:FILE   until the process whose id it holds is no more
Steps common_steps();

// Runs this rank's script, `scripts` being the arguments of main.
void run_script(const Steps& steps, const std::vector<std::string>& scripts, int rank);

// Gone, or ended and merely waiting for its parent to notice.
bool gone(pid_t pid);

void await(const std::string& path);
void write_pid(const std::string& path);
[[noreturn]] void hang();

}  // namespace lockstep::fault
