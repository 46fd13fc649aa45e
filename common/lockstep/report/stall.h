// Where a job stalled, as a report holds it: diagnose::Stall without its trace.
#pragma once

#include <lockstep/diagnose/stall.h>

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::report {

struct Stall {
  struct Call {
    std::string operation;  // "" = none
    std::int64_t sequence = 0;
    std::string group;
  };
  struct Rank {
    int rank = 0;
    std::string state;      // diagnose::RankState: "waiting", "absent", "dead", ...
    bool to_blame = false;  // among those to look at first
    Call here;              // what it entered in this place
    Call last;              // its last one of any group
    std::string ended;      // launch::End, "" where the launcher left no word
    std::int64_t exit_code = 0;
    std::int64_t signal = 0;
  };
  std::string operation;
  std::int64_t sequence = 0;
  std::string group;
  std::int64_t step = -1;
  std::vector<Rank> ranks;
};

Stall stall_of(const diagnose::Stall& place);

}  // namespace lockstep::report
