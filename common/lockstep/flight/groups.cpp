#include <lockstep/base/error.h>
#include <lockstep/base/text.h>
#include <lockstep/flight/groups.h>
#include <lockstep/flight/words.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

namespace lockstep::flight {
namespace {

constexpr std::uint64_t kMostRanks = 10'000'000;

// "[0, 1, 2]"
std::vector<int> parse_ranks(const std::string& text) {
  std::vector<int> ranks;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    if (*at == '[' || *at == ']' || *at == ',' || *at == ' ') {
      ++at;
      continue;
    }
    int rank = -1;
    const auto [stopped, error] = std::from_chars(at, end, rank);
    if (error != std::errc() || rank < 0 || static_cast<std::uint64_t>(rank) >= kMostRanks)
      throw Error("a group's ranks are no list of numbers: " + escaped(text.substr(0, 80)));
    ranks.push_back(rank);
    at = stopped;
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

// The world's size, or the group's, that an entry's shapes give away; 0 where they do not.
std::uint64_t size_by_shapes(const Names& names, const Entry& entry) {
  const auto operation = operation_of(names, entry);
  const bool gathers = operation == "all_gather" || operation == "_all_gather_base";
  const bool scatters = operation == "reduce_scatter" || operation == "_reduce_scatter_base";
  if (!gathers && !scatters) return 0;
  auto one = numel(names.text(entry.input_sizes)), all = numel(names.text(entry.output_sizes));
  if (scatters) std::swap(one, all);
  return one > 0 && all % one == 0 && all / one <= kMostRanks ? all / one : 0;
}

class Assembly {
 public:
  explicit Assembly(Dumps& dumps) : dumps_(dumps), names_(*dumps.names) {
    for (std::size_t i = 0; i < dumps.ranks.size(); ++i) places_[dumps.ranks[i].rank] = i;
  }

  Job job() {
    job_.newest_group.assign(dumps_.ranks.size(), -1);
    for (std::size_t i = 0; i < dumps_.ranks.size(); ++i) split(i);
    for (auto& group : job_.groups) complete(group);
    std::set<int> without;
    for (const auto& group : job_.groups)
      for (const int rank : group.members)
        if (!places_.contains(rank)) without.insert(rank);
    job_.without_dump.assign(without.begin(), without.end());
    largest_first();
    return std::move(job_);
  }

 private:
  // The end of a coalesced call repeats what its parts say.
  bool is_end(const Entry& entry) const { return operation_of(names_, entry) == "coalesced"; }

  void split(std::size_t place) {
    auto& dump = dumps_.ranks[place];
    if (dump.entries.empty()) return;
    const auto newest = std::pair(dump.entries.back().group, dump.entries.back().group_description);
    std::unordered_map<NameId, NameId> ranks_of;
    for (const auto& config : dump.groups) ranks_of[config.group] = config.ranks;
    std::erase_if(dump.entries, [&](const Entry& entry) { return is_end(entry); });
    const auto key = [](const Entry& entry) {
      return std::tuple(entry.group, entry.group_description, entry.is_p2p,
                        entry.is_p2p ? 0 : entry.sequence);
    };
    std::stable_sort(dump.entries.begin(), dump.entries.end(),
                     [&](const Entry& a, const Entry& b) { return key(a) < key(b); });
    for (auto at = dump.entries.begin(); at != dump.entries.end();) {
      const auto begin = at;
      const auto same_group = [&](const Entry& entry) {
        return entry.group == begin->group && entry.group_description == begin->group_description;
      };
      at = std::find_if_not(at, dump.entries.end(), same_group);
      const auto p2p = std::find_if(begin, at, [](const Entry& entry) { return entry.is_p2p; });
      const auto config = ranks_of.find(begin->group);
      const auto index = group_index(*begin, config == ranks_of.end() ? kNoName : config->second);
      job_.groups[index].callers.push_back({dump.rank, &dump, {begin, p2p}, {p2p, at}});
      if (newest == std::pair(begin->group, begin->group_description))
        job_.newest_group[place] = static_cast<int>(index);
    }
  }

  // Groups of split_group() may share a name; their ranks tell them apart.
  std::size_t group_index(const Entry& entry, NameId ranks) {
    const auto [found, is_new] = indices_.try_emplace(
        std::tuple(entry.group, entry.group_description, ranks), job_.groups.size());
    if (is_new) {
      Group group;
      group.name = entry.group;
      group.description = entry.group_description;
      if (ranks != kNoName) {
        group.known_by = Members::configured;
        group.members = parse_ranks(names_.text(ranks));
      } else if (names_.text(entry.group_description) == "default_pg" ||
                 names_.text(entry.group) == "0") {
        group.known_by = Members::world;
      }
      job_.groups.push_back(std::move(group));
    }
    return found->second;
  }

  void complete(Group& group) {
    for (const auto& caller : group.callers) {
      for (const auto& entry : caller.collectives)
        if (group.size_by_shapes == 0) group.size_by_shapes = size_by_shapes(names_, entry);
      if (group.size_by_shapes != 0) break;
    }
    auto& members = group.members;
    for (const auto& caller : group.callers) members.push_back(caller.rank);
    if (group.known_by == Members::world) {
      for (const auto& dump : dumps_.ranks) members.push_back(dump.rank);
      const auto highest = *std::max_element(members.begin(), members.end());
      const auto size = std::max(static_cast<std::uint64_t>(highest) + 1, group.size_by_shapes);
      // A stray file's number is no reason to miss a million ranks.
      if (size <= 16 * dumps_.ranks.size() + 64)
        for (std::uint64_t rank = 0; rank < size; ++rank) members.push_back(static_cast<int>(rank));
    }
    std::sort(members.begin(), members.end());
    members.erase(std::unique(members.begin(), members.end()), members.end());

    std::set<int> there;
    for (const auto& caller : group.callers) there.insert(caller.rank);
    for (const int rank : members)
      if (const auto place = places_.find(rank); place != places_.end() && !there.contains(rank))
        group.callers.push_back({rank, &dumps_.ranks[place->second], {}, {}});
    std::sort(group.callers.begin(), group.callers.end(),
              [](const Caller& a, const Caller& b) { return a.rank < b.rank; });
  }

  void largest_first() {
    std::vector<std::size_t> order(job_.groups.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return job_.groups[a].members.size() > job_.groups[b].members.size();
    });
    std::vector<Group> sorted;
    std::vector<int> moved(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      moved[order[i]] = static_cast<int>(i);
      sorted.push_back(std::move(job_.groups[order[i]]));
    }
    job_.groups = std::move(sorted);
    for (auto& index : job_.newest_group)
      if (index >= 0) index = moved[static_cast<std::size_t>(index)];
  }

  Dumps& dumps_;
  Names& names_;
  Job job_;
  std::unordered_map<int, std::size_t> places_;  // of a rank's dump
  std::map<std::tuple<NameId, NameId, NameId>, std::size_t> indices_;
};

}  // namespace

std::span<const Entry> Caller::at(std::int64_t sequence) const {
  const auto [begin, end] =
      std::equal_range(collectives.begin(), collectives.end(), Entry{.sequence = sequence},
                       [](const Entry& a, const Entry& b) { return a.sequence < b.sequence; });
  return {begin, end};
}

Job put_together(Dumps& dumps) {
  return Assembly(dumps).job();
}

}  // namespace lockstep::flight
