#include <lockstep/base/error.h>
#include <lockstep/checkpoint/optimizer_formats.h>
#include <lockstep/checkpoint/optimizer_state.h>
#include <lockstep/observe/observer.h>
#include <lockstep/train/lr_scheduler.h>
#include <torch/torch.h>

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep {
namespace {

using checkpoint::format_of;
using checkpoint::OptimizerFormat;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

OptimizerParamState* state_of(Optimizer& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  return found == optimizer.state().end() ? nullptr : found->second.get();
}

[[noreturn]] void does_not_fit(const std::string& what) {
  throw Error("the state_dict does not fit the optimizer: " + what);
}

std::string counted(std::size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

// The optimizer's parameters under the numbers that the state gives them.
std::unordered_map<std::int64_t, at::Tensor> numbered(Optimizer& optimizer,
                                                      const Value::List& groups) {
  auto& own = optimizer.param_groups();
  if (groups.size() != own.size())
    does_not_fit("it has " + counted(groups.size(), "parameter group") + ", the optimizer " +
                 std::to_string(own.size()));
  std::unordered_map<std::int64_t, at::Tensor> parameters;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const auto& saved = groups[i].at("params").as_list();
    const auto& there = own[i].params();
    if (saved.size() != there.size())
      does_not_fit("its group " + std::to_string(i) + " has " + counted(saved.size(), "parameter") +
                   ", the optimizer's " + std::to_string(there.size()));
    for (std::size_t k = 0; k < there.size(); ++k)
      if (!parameters.emplace(saved[k].as_int(), there[k]).second)
        does_not_fit("parameter " + std::to_string(saved[k].as_int()) + " is named twice");
  }
  return parameters;
}

using NewState = std::pair<void*, std::unique_ptr<OptimizerParamState>>;

std::vector<NewState> read_state(const OptimizerFormat& format, const Value::Dict& state,
                                 const std::unordered_map<std::int64_t, at::Tensor>& parameters) {
  std::vector<NewState> states;
  for (const auto& [key, entries] : state) {
    const auto found = key.is_string() ? parameters.end() : parameters.find(key.as_int());
    if (found == parameters.end())
      does_not_fit("it has a state for parameter " + key.text() + ", which is in no group");
    if (entries.as_dict().empty()) continue;
    try {
      auto loaded = format.load_state(found->second, entries.as_dict());
      // SGD without momentum: older Pythons write {"momentum_buffer": None}.
      if (!format.state(*loaded).empty())
        states.emplace_back(found->second.unsafeGetTensorImpl(), std::move(loaded));
    } catch (const Error& error) {
      does_not_fit("parameter " + key.text() + " of " + format.name + ": " + error.what());
    }
  }
  if (format.state_from_the_start && states.size() != parameters.size())
    does_not_fit(std::string(format.name) + " has a state for each parameter, and " +
                 counted(parameters.size() - states.size(), "parameter") + " has none");
  return states;
}

void load_options(const OptimizerFormat& format, torch::optim::OptimizerOptions& options,
                  const Value::Dict& group, std::size_t index) {
  try {
    format.load_options(options, group);
  } catch (const Error& error) {
    does_not_fit("group " + std::to_string(index) + " of " + format.name + ": " + error.what());
  }
}

// What is no option of the optimizer's, schedules have put there.
ScheduleValues schedule_values_in(const Value::List& groups, Optimizer& optimizer,
                                  const OptimizerFormat& format) {
  ScheduleValues values(groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto known = format.options(optimizer.param_groups()[i].options());
    for (const auto& [key, value] : groups[i].as_dict())
      if (key.is_string() && !known.contains(key) && (value.is_double() || value.is_int()))
        values[i][key.as_string()] = value.as_double();
  }
  return values;
}

}  // namespace

Value state_dict(Optimizer& optimizer) {
  const auto& format = format_of(optimizer);
  const auto values = schedule_values(optimizer);
  Value::Dict states;
  Value::List groups;
  std::int64_t index = 0;
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    auto& group = optimizer.param_groups()[i];
    auto entries = format.options(group.options());
    for (const auto& [name, number] : (*values)[i]) entries[name] = number;
    Value::List indices;
    for (const auto& parameter : group.params()) {
      if (auto* state = state_of(optimizer, parameter))
        if (auto saved = format.state(*state); !saved.empty()) states[index] = std::move(saved);
      indices.push_back(index++);
    }
    entries["params"] = std::move(indices);
    groups.push_back(std::move(entries));
  }
  return Value::Dict{{"state", std::move(states)}, {"param_groups", std::move(groups)}};
}

void load_state_dict(Optimizer& optimizer, const Value& state) {
  const auto& format = format_of(optimizer);
  const auto& groups = state.at("param_groups").as_list();
  auto& own = optimizer.param_groups();
  // First all that may throw, on copies.
  auto states = read_state(format, state.at("state").as_dict(), numbered(optimizer, groups));
  for (std::size_t i = 0; i < own.size(); ++i)
    load_options(format, *own[i].options().clone(), groups[i].as_dict(), i);

  for (std::size_t i = 0; i < own.size(); ++i)
    load_options(format, own[i].options(), groups[i].as_dict(), i);
  load_schedule_values(optimizer, schedule_values_in(groups, optimizer, format));
  optimizer.state().clear();
  for (auto& [parameter, loaded] : states) optimizer.state()[parameter] = std::move(loaded);
  tell([&](Observer& to) { to.optimizer_took(optimizer, state.at("state")); });
}

}  // namespace lockstep
