// Which settings stay as they are.
#pragma once

#include <lockstep/trace/event.h>

#include <map>
#include <string>

namespace lockstep::record {

// Settings of a loss may depend on its batch, such as weights of classes. Those that do not, are told once.
class SteadySettings {
 public:
  // Those that were now seen for the third time, always with one value.
  trace::Configuration look(const std::map<std::string, std::string>& settings);

 private:
  struct Seen {
    std::string value;
    int times = 0;
    bool varies = false;
  };
  std::map<std::string, Seen> seen_;
};

}  // namespace lockstep::record
