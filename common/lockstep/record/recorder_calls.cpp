// What only the program knows, and tells; and the figures that it has.
#include <lockstep/record/recorder.h>

namespace lockstep::record {

void intent(const trace::Intent& intent) {
  if (const auto current = recorder_here())
    current->told([&](Probes& probes) { probes.intent(intent); });
}

void metric(const std::string& name, const std::string& phase, double sum, double count) {
  if (const auto current = recorder_here())
    current->told([&](Probes& probes) { probes.metric(name, phase, sum, count); });
}

// Of an evaluation: with gradients it is the training's loss.
void Recorder::figure(double sum, double count) {
  if (torch::GradMode::is_enabled()) return;
  hear([&] { probes_.metric("", "", sum, count); });
}

void decision(const std::string& name, std::int64_t value) {
  if (const auto current = recorder_here())
    current->told([&](Probes& probes) { probes.decision(name, value); });
}

void random_numbers(const std::vector<std::int64_t>& ids, const at::Tensor& numbers) {
  if (const auto current = recorder_here())
    current->told([&](Probes& probes) {
      // A loader draws the first batch's numbers before the model's first step.
      if (const auto writer = current->writer(); writer->step() < 0) writer->set_step(0);
      probes.random_numbers(ids, numbers);
    });
}

void training_state(const std::string& moment, const ValueOf<at::Tensor>::Dict& parts) {
  if (const auto current = recorder_here()) current->training_state(moment, parts);
}

void inputs(const std::vector<at::Tensor>& inputs) {
  if (const auto current = recorder_here())
    current->told([&](Probes& probes) { probes.inputs(inputs); });
}

void average(const std::string& name, const at::Tensor& own, std::int64_t count,
             const at::Tensor& used) {
  if (const auto current = recorder_here())
    current->told([&](Probes& probes) { probes.average(name, own, count, used); });
}

void async_result(const std::string& name, const std::string& moment, const at::Tensor& result) {
  if (const auto current = recorder_here())
    current->told([&](Probes& probes) { probes.async_result(name, moment, result); });
}

}  // namespace lockstep::record
