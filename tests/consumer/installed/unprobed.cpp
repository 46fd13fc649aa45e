// The same training on this library's sampler, engine, optimizer and loss. Not a line of it is about recording: where
// LOCKSTEP_TRACE names a folder it is recorded, since it links lockstep::record. One process a rank.
//
//   unprobed TEXT [FAULT]     FAULT: bypass, one-order
#include <lockstep/dist/process_group.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/watched.h>

#include <iostream>

#include "letters.h"

namespace {

using namespace letters;

void train(const std::string& text, const std::string& fault) {
  const auto places = read_places(text);
  auto group = lockstep::init_process_group();
  const int rank = group->getRank(), world_size = group->getSize();

  torch::manual_seed(1);
  lockstep::DistributedDataParallel<NextLetter> model(NextLetter(), group);
  lockstep::SGD optimizer(model.parameters(), 0.1);
  lockstep::DistributedSampler sampler(
      {.dataset_size = places.size(), .num_replicas = world_size, .rank = rank, .seed = 7});
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    if (fault != "one-order") sampler.set_epoch(epoch);
    for (const auto& ids : sampler.batches(kBatch)) {
      const auto chosen = torch::tensor(ids);
      const auto inputs = places.inputs.index_select(0, chosen);
      optimizer.zero_grad();
      const auto outputs = fault == "bypass" ? model.module()->forward(inputs) : model(inputs);
      lockstep::cross_entropy(outputs, places.targets.index_select(0, chosen)).mean().backward();
      optimizer.step();
    }
  }
  lockstep::destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) throw std::runtime_error("usage: unprobed TEXT [FAULT]");
  train(argv[1], argc > 2 ? argv[2] : "");
  return 0;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return 1;
}
