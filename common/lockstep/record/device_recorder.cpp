#include <lockstep/base/say.h>
#include <lockstep/dist/collective_call.h>
#include <lockstep/observe/parameters_of.h>
#include <lockstep/record/device_recorder.h>
#include <lockstep/record/held_parameters.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

namespace lockstep::record {
namespace {

bool have_one_in_common(const torch::nn::Module& module, const std::vector<at::Tensor>& tensors) {
  const auto parameters = module.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](const auto& parameter) { return is_among(parameter, tensors); });
}

}  // namespace

DeviceRecorder::DeviceRecorder(const std::vector<std::shared_ptr<trace::Writer>>& writers,
                               bool transfers)
    : transfers_(transfers) {
  for (const auto& writer : writers)
    devices_.push_back({.writer = writer, .probes = std::make_unique<Probes>(writer), .copy = {}});
}

// The program does not end for its traces' sake.
void DeviceRecorder::hear(c10::function_ref<void()> call) {
  if (failed_) return;
  try {
    call();
  } catch (const std::exception& error) {
    failed_ = true;
    say("lockstep: the devices are recorded no further: " + text_of(error) + "\n");
  }
}

// A device whose copy made no update in device 0's last step begins the next one with it.
void DeviceRecorder::catch_up() {
  const auto step = devices_.front().writer->step();
  for (auto& device : devices_) {
    if (device.writer->step() >= step) continue;
    device.probes = std::make_unique<Probes>(device.writer);  // without what it gathered
    device.gradients_told = false;
    device.writer->set_step(step);
    if (device.copy) device.probes->attach(*device.copy);
  }
}

void DeviceRecorder::fetch(const Fetch& fetch) {
  const bool looks = !torch::GradMode::is_enabled();
  phase_ = looks ? "evaluation" : fetch.phase.empty() ? "train" : fetch.phase;
  ids_ = fetch.ids;
}

void DeviceRecorder::split(std::int64_t devices, const std::vector<std::int64_t>& sizes) {
  hear([&] {
    // The first batch belongs to the first step, though no device may have begun it.
    if (torch::GradMode::is_enabled())
      for (auto& device : devices_)
        if (device.writer->step() < 0) device.writer->set_step(0);
    catch_up();
    devices_.front().probes->split(devices, sizes);
    const auto samples = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    if (sizes.size() > devices_.size() || static_cast<std::int64_t>(ids_.size()) != samples) return;
    auto next = ids_.begin();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      devices_[i].probes->samples(phase_, {next, next + sizes[i]});
      next += sizes[i];
    }
    ids_.clear();  // the same batch's targets are split next
  });
}

void DeviceRecorder::replicated(const std::vector<std::shared_ptr<torch::nn::Module>>& copies) {
  hear([&] {
    catch_up();
    const auto step = devices_.front().writer->step();
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      auto& device = devices_[i];
      device.copy = i < copies.size() ? copies[i] : nullptr;
      if (!device.copy) continue;
      device.probes->attach(*device.copy);
      if (std::exchange(device.started, true)) continue;
      device.probes->start();
      if (step > 0) device.writer->set_step(step);
    }
  });
}

void DeviceRecorder::applied(std::size_t copies) {
  hear([&] {
    for (std::size_t i = 0; i < std::min(copies, devices_.size()); ++i)
      if (devices_[i].copy) devices_[i].probes->forward(devices_[i].copy->is_training());
  });
}

void DeviceRecorder::transfer(std::size_t from, std::size_t to, std::int64_t bytes,
                              const std::string& what) {
  if (!transfers_ || to >= devices_.size()) return;
  hear([&] {
    devices_[to].probes->transfer(static_cast<std::int64_t>(from), static_cast<std::int64_t>(to),
                                  bytes, what);
  });
}

void DeviceRecorder::optimizer_made(torch::optim::Optimizer& optimizer) {
  const auto parameters = parameters_of(optimizer);
  of_optimizers_.insert(of_optimizers_.end(), parameters.begin(), parameters.end());
}

bool DeviceRecorder::is_moved_by(std::size_t device,
                                 const torch::optim::Optimizer& optimizer) const {
  const auto parameters = parameters_of(optimizer);
  const auto has = [&](std::size_t i) {
    return devices_[i].copy && have_one_in_common(*devices_[i].copy, parameters);
  };
  if (has(device)) return true;
  const auto& copy = devices_[device].copy;
  return copy && !have_one_in_common(*copy, of_optimizers_) && has(0);
}

void DeviceRecorder::update_begins(torch::optim::Optimizer& optimizer) {
  hear([&] {
    const bool all = is_moved_by(0, optimizer);
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      auto& device = devices_[i];
      if (!device.copy || (!all && !is_moved_by(i, optimizer))) continue;
      if (!std::exchange(device.gradients_told, true)) device.probes->gradients_ready();
    }
  });
}

void DeviceRecorder::update_ended(torch::optim::Optimizer& optimizer) {
  hear([&] {
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      auto& device = devices_[i];
      if (!is_moved_by(i, optimizer)) continue;
      device.probes->updated(optimizer);
      device.gradients_told = false;
    }
  });
}

}  // namespace lockstep::record
