#include "forms.h"

namespace lockstep::testing {

FormCase right(std::string form, int min_world_size) {
  return {.form = std::move(form), .min_world_size = min_world_size};
}

FormCase exactly(std::string form, Figure observed, int min_world_size, double tolerance,
                 std::string ending) {
  return {.form = std::move(form),
          .observed = std::move(observed),
          .tolerance = tolerance,
          .min_world_size = min_world_size,
          .ending = std::move(ending)};
}

FormCase at_least(std::string form, double observed, int min_world_size) {
  return {.form = std::move(form),
          .observed = always(observed),
          .min_world_size = min_world_size,
          .at_least = true};
}

Figure always(double value) {
  return [value](int) { return value; };
}

std::vector<FormCase> all_forms() {
  const std::vector<std::pair<std::string, std::vector<FormCase>>> lessons = {
      {"01_single_device", forms_01()},
      {"02_data_parallel", forms_02()},
      {"03_ddp", forms_03()},
      {"04_sampler", forms_04()},
      {"05_set_epoch", forms_05()},
      {"06_sync_batch_norm", forms_06()},
      {"07_checkpoint", forms_07()},
      {"08_lr_scaling", forms_08()},
      {"09_hanging_collective", forms_09()},
      {"10_launch", forms_10()},
      {"11_uneven_inputs", forms_11()},
      {"12_gradient_accumulation", forms_12()},
      {"13_clipping_and_mixed_precision", forms_13()},
      {"14_unused_parameters", forms_14()},
      {"15_randomness", forms_15()},
      {"16_metrics", forms_16()},
      {"17_nccl_and_streams", forms_17()},
      {"18_elastic_restart", forms_18()},
  };
  std::vector<FormCase> all;
  for (const auto& [lesson, forms] : lessons)
    for (auto form : forms) {
      form.lesson = lesson;
      all.push_back(std::move(form));
    }
  return all;
}

}  // namespace lockstep::testing
