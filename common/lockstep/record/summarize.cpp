#include <lockstep/base/hash.h>
#include <lockstep/record/content.h>
#include <lockstep/record/probes.h>
#include <lockstep/record/sketch.h>

#include <cmath>
#include <set>

namespace lockstep::record {

trace::Summary summarize(const at::Tensor& tensor) {
  auto plain = plain_on_cpu(tensor);
  if (plain.is_complex()) plain = at::view_as_real(plain);
  trace::Summary summary;
  summary.hash = hash_bytes(plain.const_data_ptr(), plain.nbytes());
  const auto size = static_cast<std::size_t>(plain.numel());
  Projections projections;
  if (plain.scalar_type() == at::kFloat) {
    projections = project(plain.const_data_ptr<float>(), size);
  } else {
    const auto wide = plain.to(at::kDouble);
    projections = project(wide.const_data_ptr<double>(), size);
  }
  summary.norm = std::sqrt(projections.sum_of_squares);
  summary.sketch.assign(projections.values.begin(), projections.values.end());
  return summary;
}

trace::CheckpointFile checkpoint_file_of(const std::string& action,
                                         const std::filesystem::path& file) {
  trace::CheckpointFile what;
  what.action = action;
  what.file = hash_place(file);
  if (action != "save_begin") what.content = hash_file(file);
  return what;
}

trace::TrainingState training_state_of(const std::string& moment,
                                       const ValueOf<at::Tensor>::Dict& parts) {
  trace::TrainingState state;
  state.moment = moment;
  for (const auto& [name, part] : parts) {
    std::set<std::string> devices;
    state.names.push_back(name.text());
    state.hashes.push_back(hash_value(part, &devices));
    state.devices.push_back(c10::Join(", ", devices));
  }
  return state;
}

}  // namespace lockstep::record
