// The same training with probes beside its own steps, so that silent faults are seen too. One process a rank.
//
//   probed TEXT [FAULT]     FAULT: sum, one-order
#include <lockstep/dist/process_group.h>
#include <lockstep/record/probes.h>
#include <lockstep/record/record_into.h>

#include <iostream>
#include <numeric>

#include "letters.h"

namespace {

using namespace letters;

void train(const std::string& text, const std::string& fault) {
  const auto places = read_places(text);
  lockstep::InitOptions options;
  const auto writer = lockstep::record::record_into(options, "traces");
  auto group = lockstep::init_process_group(options);
  const int rank = group->getRank(), world_size = group->getSize();

  torch::manual_seed(1);
  NextLetter model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);

  lockstep::record::Probes probes(writer);
  std::vector<std::int64_t> all_ids(static_cast<std::size_t>(places.size()));
  std::iota(all_ids.begin(), all_ids.end(), 0);
  probes.intent({.global_batch = world_size * kBatch, .loss_reduction = "mean"});
  probes.dataset("train", places.inputs, places.targets, all_ids, places.size());
  probes.attach(*model);
  probes.start();
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    probes.pass_begin("train", epoch);
    const auto batches =
        batches_of(places.size(), fault == "one-order" ? 7 : 7 + epoch, rank, world_size);
    for (const auto& ids : batches) {
      probes.samples("train", ids);
      const auto chosen = torch::tensor(ids);
      optimizer.zero_grad();
      const auto each = torch::cross_entropy_loss(model(places.inputs.index_select(0, chosen)),
                                                  places.targets.index_select(0, chosen), {},
                                                  at::Reduction::None);
      probes.forward(true);
      const auto loss = each.mean();
      probes.loss(loss, each);
      loss.backward();
      std::vector<torch::Tensor> gradients = {flat_gradients(*model)};
      group->allreduce(gradients)->wait();
      set_gradients(*model, fault == "sum" ? gradients[0] : gradients[0] / world_size);
      probes.gradients_ready();
      optimizer.step();
      probes.updated(optimizer);
    }
    probes.pass_end("train", epoch, static_cast<std::int64_t>(batches.size()));
  }
  lockstep::destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) throw std::runtime_error("usage: probed TEXT [FAULT]");
  train(argv[1], argc > 2 ? argv[2] : "");
  return 0;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return 1;
}
