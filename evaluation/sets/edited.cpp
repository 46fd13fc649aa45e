#include "edited.h"

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

namespace unseen {
namespace {
std::string edit;  // NOLINT: set once, by run()
}

bool edited(const std::string& name) {
  return edit == name;
}

int run(int argc, char** argv, void (*train)(const std::filesystem::path& folder)) {
  const bool has_edit = argc == 4 && std::string(argv[2]) == "--edit";
  if (argc != 2 && !has_edit) {
    std::cerr << "usage: " << argv[0] << " OUT_FOLDER [--edit NAME]\n";
    return 2;
  }
  if (has_edit) edit = argv[3];
  torch::set_num_threads(1);
  try {
    train(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    const std::string what = error.what();
    std::cerr << "Error: " << what.substr(0, what.find('\n')) << std::endl;
    return 1;
  }
}

std::vector<double> flat(const at::Tensor& tensor) {
  const auto values = tensor.detach().to(at::kDouble).contiguous();
  return {values.data_ptr<double>(), values.data_ptr<double>() + values.numel()};
}

void write(const std::filesystem::path& folder, int rank, const Report& report,
           const torch::nn::Module& model) {
  nlohmann::json json = report.numbers;
  json["losses"] = report.losses;
  json["held_out"] = report.held_out;
  if (!report.seen.empty()) json["seen"] = report.seen;
  if (!report.tokens.empty()) json["tokens"] = report.tokens;
  json["weights"] = nlohmann::json::object();
  for (const auto& parameter : model.named_parameters())
    json["weights"][parameter.key()] = flat(parameter.value());
  std::ofstream file(folder / ("rank_" + std::to_string(rank) + ".json"));
  file << json << "\n";
  TORCH_CHECK(file.flush(), "cannot write into ", folder.string());
}

}  // namespace unseen
