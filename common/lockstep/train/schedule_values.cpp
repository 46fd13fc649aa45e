#include <lockstep/observe/parameters_of.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/schedule_values.h>

#include <algorithm>
#include <map>
#include <mutex>

namespace lockstep {
namespace {

WeakTensor first_parameter(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups())
    if (!group.params().empty()) return weak_of(group.params().front());
  return weak_of({});
}

struct SharedValues {
  std::weak_ptr<ScheduleValues> values;
  // From a file, and no schedule has taken it yet. An optimizer holds its parameters, so it has ended where
  // its first one has, and is another where that is another.
  std::shared_ptr<ScheduleValues> waiting;
  std::optional<WeakTensor> waiting_for;
};

std::mutex shared_values_mutex;  // of the map that shared_values gives parts of

SharedValues& shared_values(const torch::optim::Optimizer& optimizer) {
  static std::map<const torch::optim::Optimizer*, SharedValues> of_optimizer;
  for (auto& [address, shared] : of_optimizer)
    if (shared.waiting &&
        (shared.waiting_for->expired() ||
         (address == &optimizer && *shared.waiting_for != first_parameter(optimizer))))
      shared.waiting.reset();
  std::erase_if(of_optimizer, [](const auto& entry) { return entry.second.values.expired(); });
  return of_optimizer[&optimizer];
}

std::shared_ptr<ScheduleValues> values_in(SharedValues& shared,
                                          const torch::optim::Optimizer& optimizer) {
  auto values = shared.values.lock();
  if (!values) shared.values = values = std::make_shared<ScheduleValues>();
  values->resize(optimizer.param_groups().size());
  return values;
}

}  // namespace

std::shared_ptr<ScheduleValues> schedule_values(torch::optim::Optimizer& optimizer) {
  const std::lock_guard lock(shared_values_mutex);
  return values_in(shared_values(optimizer), optimizer);
}

void load_schedule_values(torch::optim::Optimizer& optimizer, const ScheduleValues& loaded) {
  const std::lock_guard lock(shared_values_mutex);
  auto& shared = shared_values(optimizer);
  shared.waiting.reset();  // a former load's
  const bool has_schedule = !shared.values.expired();
  const auto values = values_in(shared, optimizer);
  bool any = false;
  for (std::size_t i = 0; i < std::min(loaded.size(), values->size()); ++i)
    for (const auto& [name, value] : loaded[i]) {
      (*values)[i][name] = value;
      any = true;
    }
  if (has_schedule || !any) return;
  shared.waiting = values;
  shared.waiting_for = first_parameter(optimizer);
}

void detail::values_are_taken(const torch::optim::Optimizer& optimizer) {
  const std::lock_guard lock(shared_values_mutex);
  shared_values(optimizer).waiting.reset();
}

}  // namespace lockstep
