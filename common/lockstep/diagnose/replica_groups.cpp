#include <lockstep/diagnose/calls.h>
#include <lockstep/diagnose/gradients.h>
#include <lockstep/diagnose/replica_groups.h>

#include <algorithm>
#include <numeric>
#include <optional>

namespace lockstep::diagnose {
namespace {

// The members' ranks as this rank told them first; nothing where it told none.
const std::vector<std::int64_t>* told_by(const trace::ParticipantTrace& rank) {
  for (const auto& at : rank.latest<trace::Group>())
    if (at.event->action == "replicas") return &at.event->members;
  return nullptr;
}

bool has_engine(const trace::ParticipantTrace& rank, const char* kind) {
  const auto engines = rank.latest<trace::Engine>();
  return std::any_of(engines.begin(), engines.end(),
                     [&](const auto& at) { return at.event->kind == kind; });
}

bool passes_tensors_on(const trace::ParticipantTrace& rank) {
  const auto calls = rank.latest<trace::Collective>();
  return std::any_of(calls.begin(), calls.end(),
                     [](const auto& at) { return at.step >= 0 && is_point_to_point(*at.event); });
}

bool are_stages(const Run& run) {
  if (run.devices || run.ranks.size() < 2) return false;
  const std::vector<std::vector<std::int64_t>>* shapes = nullptr;
  bool differ = false;
  for (const auto* rank : run.ranks) {
    const auto models = rank->latest<trace::Model>();
    if (models.empty() || !rank->latest<trace::Engine>().empty() || !passes_tensors_on(*rank))
      return false;
    if (shapes == nullptr) shapes = &models.front().event->shapes;
    differ = differ || models.front().event->shapes != *shapes;
  }
  return differ;
}

std::string find_sharding(const Run& run) {
  for (const auto* kind : {"fully_sharded", "tensor_parallel", "deepspeed"})
    if (std::any_of(run.ranks.begin(), run.ranks.end(),
                    [&](const auto* rank) { return has_engine(*rank, kind); }))
      return kind;
  return "";
}

std::vector<int> everybody(const Run& run) {
  std::vector<int> ranks(static_cast<std::size_t>(run.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

bool are_alone(const Run& run) {
  return run.ranks.size() > 1 &&
         std::all_of(run.ranks.begin(), run.ranks.end(), [](const auto* rank) {
           const auto* members = told_by(*rank);
           return members != nullptr && members->size() == 1;
         });
}

namespace {

// They were made as replicas are.
bool begin_equal(const Run& run) {
  const auto start = replicas_by_step(run).find(-1);
  return start != replicas_by_step(run).end() &&
         std::all_of(start->second.begin(), start->second.end(), [&](const auto* values) {
           return are_identical(*values, *start->second.front());
         });
}

}  // namespace

std::vector<std::vector<int>> replica_groups(const Run& run) {
  const auto all = everybody(run);
  std::vector<std::optional<std::size_t>> group_of(all.size());
  std::vector<std::vector<int>> groups;
  for (const auto* rank : run.ranks) {
    const auto number = static_cast<std::size_t>(rank->participant.rank);
    const auto* members = told_by(*rank);
    if (members == nullptr || group_of[number]) continue;
    groups.emplace_back();
    for (const auto member : *members) {
      if (member < 0 || member >= run.world_size) continue;
      auto& of = group_of[static_cast<std::size_t>(member)];
      if (of) continue;
      of = groups.size() - 1;
      groups.back().push_back(static_cast<int>(member));
    }
  }
  const bool told = !groups.empty();
  const bool parts = std::any_of(run.ranks.begin(), run.ranks.end(), [](const auto* rank) {
    return has_engine(*rank, "tensor_parallel") || has_engine(*rank, "pipeline");
  });
  if (!told && !parts && !are_stages(run)) return {all};
  if (!parts && sharded_by(run).empty() && are_alone(run) && begin_equal(run)) return {all};
  for (const int rank : all)
    if (!group_of[static_cast<std::size_t>(rank)]) groups.push_back({rank});
  std::erase_if(groups, [](const auto& group) { return group.empty(); });
  for (auto& group : groups) std::sort(group.begin(), group.end());
  std::sort(groups.begin(), groups.end());
  return groups;
}

const std::string& sharded_by(const Run& run) {
  return run.once(find_sharding);
}

}  // namespace lockstep::diagnose
