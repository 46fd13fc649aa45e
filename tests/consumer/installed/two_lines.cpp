// A training of somebody's own, and the two lines that have it recorded. One process a rank.
//
//   two_lines TEXT [FAULT]     FAULT: loss-on-rank-0, last-loss-on-rank-0
#include <lockstep/dist/process_group.h>
#include <lockstep/record/record_into.h>  // added

#include <cstdlib>
#include <iostream>

#include "letters.h"

namespace {

void train(const std::string& text, const std::string& fault) {
  using namespace letters;
  const auto places = read_places(text);

  lockstep::InitOptions options;
  if (const char* backend = std::getenv("LETTERS_BACKEND")) options.backend = backend;
  lockstep::record::record_into(options, "traces");  // added
  auto group = lockstep::init_process_group(options);
  const int rank = group->getRank(), world_size = group->getSize();

  torch::manual_seed(1);
  NextLetter model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    std::vector<torch::Tensor> total = {torch::zeros({2})};
    for (const auto& ids : batches_of(places.size(), 7 + epoch, rank, world_size)) {
      const auto chosen = torch::tensor(ids);
      optimizer.zero_grad();
      const auto loss = torch::cross_entropy_loss(model(places.inputs.index_select(0, chosen)),
                                                  places.targets.index_select(0, chosen));
      loss.backward();
      std::vector<torch::Tensor> gradients = {flat_gradients(*model)};
      group->allreduce(gradients)->wait();
      set_gradients(*model, gradients[0] / world_size);
      optimizer.step();
      total[0] += torch::stack({loss.detach(), torch::ones({})});
    }
    const bool only_rank_0 =
        fault == "loss-on-rank-0" || (fault == "last-loss-on-rank-0" && epoch + 1 == kEpochs);
    if (rank == 0 || !only_rank_0) {
      group->allreduce(total)->wait();
      if (rank == 0)
        std::cout << "epoch " << epoch << ": loss " << (total[0][0] / total[0][1]).item<double>()
                  << "\n";
    }
  }
  lockstep::destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) throw std::runtime_error("usage: two_lines TEXT [FAULT]");
  train(argv[1], argc > 2 ? argv[2] : "");
  return 0;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return 1;
}
