// What the programs of these sets share: their command line, and what a rank reports at its end. A program is
//
//   int main(int argc, char** argv) { return unseen::run(argc, argv, train); }
//
// and is started as `BASE OUT_FOLDER [--edit NAME]`, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the
// environment. A base whose name begins with "resume" is started twice with the same folder, and goes on the second time.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace unseen {

// Whether the command line names this edit.
bool edited(const std::string& name);

// Runs `train` with one thread. Gives main's exit code: 1, with "Error: ..." on stderr, where it throws.
int run(int argc, char** argv, void (*train)(const std::filesystem::path& folder));

struct Report {
  std::vector<double> losses = {};                   // of each step, this rank's own
  double held_out = 0;                               // the loss on samples that nobody trains on
  std::vector<std::vector<std::int64_t>> seen = {};  // this rank's samples of each epoch, in order
  std::vector<std::int64_t> tokens = {};             // of each step
  std::map<std::string, std::vector<double>> numbers =
      {};  // what else: {"accuracy", {0.7}}, {"buffers", flat(mean)}
};

std::vector<double> flat(const at::Tensor& tensor);

// FOLDER/rank_RANK.json: the report with the model's parameters as "weights".
void write(const std::filesystem::path& folder, int rank, const Report& report,
           const torch::nn::Module& model);

}  // namespace unseen
