// Records one process that drives several devices, a trace for each device, from what train/data_parallel.h, the
// optimizers and take() tell:
//
//   std::vector<std::shared_ptr<trace::Writer>> writers;
//   for (int i = 0; i < 4; ++i)
//     writers.push_back(std::make_shared<trace::Writer>(folder, trace::Participant{i, 4, "device"}));
//   const auto recorder = std::make_shared<record::DeviceRecorder>(writers);  // as long as the training takes
//   observe(recorder);
#pragma once

#include <c10/util/FunctionRef.h>
#include <lockstep/observe/observer.h>
#include <lockstep/record/probes.h>

#include <memory>
#include <string>
#include <vector>

namespace lockstep::record {

// An update of device 0's module is a step of all devices. Those with optimizers of their own take it as these do.
class DeviceRecorder final : public Observer {
 public:
  // Without `transfers`, what moves between the devices is not recorded.
  explicit DeviceRecorder(const std::vector<std::shared_ptr<trace::Writer>>& writers,
                          bool transfers = true);

  void optimizer_made(torch::optim::Optimizer& optimizer) override;
  void update_begins(torch::optim::Optimizer& optimizer) override;
  void update_ended(torch::optim::Optimizer& optimizer) override;
  void fetch(const Fetch& fetch) override;
  void split(std::int64_t devices, const std::vector<std::int64_t>& sizes) override;
  void replicated(const std::vector<std::shared_ptr<torch::nn::Module>>& copies) override;
  void applied(std::size_t copies) override;
  void transfer(std::size_t from, std::size_t to, std::int64_t bytes,
                const std::string& what) override;

 private:
  struct Device {
    std::shared_ptr<trace::Writer> writer;
    std::unique_ptr<Probes> probes;
    std::shared_ptr<torch::nn::Module> copy;  // null while it has none
    bool started = false;
    bool gradients_told = false;  // of this step
  };

  void hear(c10::function_ref<void()> call);
  void catch_up();
  bool is_moved_by(std::size_t device, const torch::optim::Optimizer& optimizer) const;

  std::vector<Device> devices_;
  bool transfers_;
  bool failed_ = false;
  std::vector<at::Tensor> of_optimizers_;  // the parameters of all of them
  std::string phase_;                      // of what was fetched and not split yet
  std::vector<std::int64_t> ids_;
};

}  // namespace lockstep::record
