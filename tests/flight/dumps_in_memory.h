// A job's dumps, made by telling what each rank called. They pass through the reader as JSON.
#pragma once

#include <lockstep/diagnose/text.h>
#include <lockstep/flight/diagnosis.h>
#include <lockstep/flight/dump.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::flight {

using Sizes = std::vector<std::vector<int>>;

struct Call {
  std::string operation = "all_reduce";
  Sizes input = {{4}};
  Sizes output = {{4}};
  std::string group = "0";
  std::string dtype = "Float";
  std::string state = "scheduled";
  bool retired = false;
  bool same_sequence = false;  // a part of the call before it
};

class Rank {
 public:
  explicit Rank(std::string backend) : backend_(std::move(backend)) {}

  Rank& call(const Call& what, int times = 1) {
    for (int i = 0; i < times; ++i) add(what);
    return *this;
  }
  // Only the newest `count` are left.
  Rank& cut_to(std::size_t count) {
    const auto drop = static_cast<std::ptrdiff_t>(entries_.size() - count);
    entries_.erase(entries_.begin(), entries_.begin() + drop);
    return *this;
  }
  // Only the unfinished are left.
  Rank& unfinished_only() {
    for (auto at = entries_.begin(); at != entries_.end();)
      at = (*at)["state"] == "completed" ? entries_.erase(at) : at + 1;
    return *this;
  }
  nlohmann::json dump(const std::map<std::string, std::string>& config) const {
    nlohmann::json groups = nlohmann::json::object();
    for (const auto& [name, ranks] : config) groups[name] = {{"name", name}, {"ranks", ranks}};
    const bool any = record_ > 0;
    return {{"version", "2.10"},
            {"pg_config", groups},
            {"pg_status", any ? nlohmann::json{{"0", {{"x", "1"}}}} : nlohmann::json::object()},
            {"entries", entries_}};
  }

 private:
  void add(const Call& what) {
    const bool p2p = what.operation.starts_with("send") || what.operation.starts_with("recv");
    if (!p2p && !what.same_sequence) ++sequences_[what.group];
    if (p2p) ++p2p_sequence_;
    entries_.push_back(
        {{"record_id", record_++},
         {"process_group", {what.group, what.group == "0" ? "default_pg" : "part"}},
         {"collective_seq_id", sequences_[what.group]},
         {"p2p_seq_id", p2p_sequence_},
         {"profiling_name", backend_ + ":" + what.operation},
         {"input_sizes", what.input},
         {"output_sizes", what.output},
         {"input_dtypes", {what.dtype}},
         {"output_dtypes", {what.dtype}},
         {"state", what.state},
         {"retired", what.retired},
         {"is_p2p", p2p},
         {"frames", nlohmann::json::array(
                        {{{"name", "step"}, {"filename", "train.py"}, {"line", record_ + 9}}})}});
  }

  std::string backend_;
  int record_ = 0;
  int p2p_sequence_ = 0;
  std::map<std::string, int> sequences_;
  nlohmann::json entries_ = nlohmann::json::array();
};

using diagnose::Finding;
inline std::string text_of(const Diagnosis& diagnosis) {
  return diagnose::to_text(diagnosis.findings);
}

// Without a configuration of groups: as Gloo's dumps are.
struct Ranks {
  explicit Ranks(int count, std::map<std::string, std::string> its_groups = {},
                 const std::string& backend = "gloo")
      : groups(std::move(its_groups)), ranks(static_cast<std::size_t>(count), Rank(backend)) {}

  Rank& operator[](int rank) { return ranks[static_cast<std::size_t>(rank)]; }
  Ranks& all(const Call& what, int times = 1) {
    for (auto& rank : ranks) rank.call(what, times);
    return *this;
  }

  Diagnosis diagnosis(const std::vector<int>& without = {}) const {
    Dumps dumps;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const int rank = static_cast<int>(i);
      if (std::find(without.begin(), without.end(), rank) != without.end()) continue;
      dumps.ranks.push_back(parse_dump(ranks[i].dump(groups).dump(), *dumps.names));
      dumps.ranks.back().rank = rank;
    }
    return diagnose(std::move(dumps));
  }
  // The only finding.
  Finding finding(const std::vector<int>& without = {}) const {
    const auto all = diagnosis(without);
    EXPECT_EQ(all.findings.size(), 1) << text_of(all);
    return all.findings.empty() ? Finding{.ranks = {}, .evidence = {}} : all.findings.front();
  }

  std::map<std::string, std::string> groups;
  std::vector<Rank> ranks;
};

}  // namespace lockstep::flight
