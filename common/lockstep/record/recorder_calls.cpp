// What only the program knows, and tells; and the figures that it has.
#include <lockstep/record/recorder.h>

namespace lockstep::record {
namespace {

void to_recorder(c10::function_ref<void(Probes&)> call) {
  if (const auto current = recorder_here()) current->told(call);
}

}  // namespace

void intent(const trace::Intent& intent) {
  to_recorder([&](Probes& probes) { probes.intent(intent); });
}

void metric(const std::string& name, const std::string& phase, double sum, double count) {
  to_recorder([&](Probes& probes) { probes.metric(name, phase, sum, count); });
}

// Of an evaluation: with gradients it is the training's loss.
void Recorder::figure(double sum, double count) {
  if (torch::GradMode::is_enabled()) return;
  hear([&] { probes_.metric("", "", sum, count); });
}

// A loader draws the first batch's before the model's first step.
void Recorder::random_numbers(const std::vector<std::int64_t>& ids, const at::Tensor& numbers) {
  told([&](Probes& probes) {
    if (writer_->step() < 0) writer_->set_step(0);
    probes.random_numbers(ids, numbers);
  });
}

void decision(const std::string& name, std::int64_t value) {
  to_recorder([&](Probes& probes) { probes.decision(name, value); });
}

void random_numbers(const std::vector<std::int64_t>& ids, const at::Tensor& numbers) {
  if (const auto current = recorder_here()) current->random_numbers(ids, numbers);
}

void training_state(const std::string& moment, const ValueOf<at::Tensor>::Dict& parts) {
  if (const auto current = recorder_here()) current->training_state(moment, parts);
}

void inputs(const std::vector<at::Tensor>& inputs) {
  to_recorder([&](Probes& probes) { probes.inputs(inputs); });
}

void average(const std::string& name, const at::Tensor& own, std::int64_t count,
             const at::Tensor& used) {
  to_recorder([&](Probes& probes) { probes.average(name, own, count, used); });
}

void async_result(const std::string& name, const std::string& moment, const at::Tensor& result) {
  to_recorder([&](Probes& probes) { probes.async_result(name, moment, result); });
}

}  // namespace lockstep::record
