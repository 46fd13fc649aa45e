// A recorded run under other names: what a detector must not go by is changed, and nothing else.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace lockstep::simulated {

// Makes up names, the same for the same, and takes them back out of a text.
class Renaming {
 public:
  std::string operator()(const std::string& name);
  // "layer.weight": each part by itself, so that a common prefix stays one.
  std::string parts_of(const std::string& name);
  void add(const std::string& name, const std::string& made_up);  // one that the caller makes up
  std::string undone_in(std::string text) const;

 private:
  std::map<std::string, std::string> made_up_;  // by name
};

// Copies a run's traces, those of its attempts too. In the copy the ranks' files have other names, which say
// another order; parameters, buffers, metrics, averages, results and process groups are called otherwise; paths,
// machines and devices have other hashes; the processes have other ids, and all happened at another time.
void copy_renamed(const std::filesystem::path& from, const std::filesystem::path& to,
                  Renaming& renaming);

}  // namespace lockstep::simulated
