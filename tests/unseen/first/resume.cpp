// Will the customer come back? An MLP with dropout that stops halfway and goes on from its checkpoint: weights, momentum,
// schedule, the generators of all ranks and the epoch.
#include <lockstep/checkpoint/broadcast_value.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/checkpoint/save_on_rank_zero.h>
#include <lockstep/train/distributed_data_parallel.h>
#include <lockstep/train/distributed_sampler.h>
#include <lockstep/train/loss.h>
#include <lockstep/train/lr_scheduler.h>
#include <lockstep/train/seeding.h>
#include <lockstep/train/watched.h>

#include "edited.h"

namespace {

using namespace lockstep;
using unseen::edited;

constexpr std::int64_t kSamples = 384, kFacts = 12, kBatch = 16, kEpochs = 4, kHalf = 2;

struct Customers {
  at::Tensor facts, stays;  // [n, kFacts], [n]
};

Customers make_customers(std::int64_t count, std::uint64_t seed) {
  const auto dice = torch::make_generator<at::CPUGeneratorImpl>(seed);
  const auto facts = at::randn({count, kFacts}, dice);
  const auto sum =
      facts.select(1, 0) * facts.select(1, 1) + facts.select(1, 2) - facts.select(1, 3);
  return {facts, (sum + 0.3 * at::randn({count}, dice) > 0).to(at::kLong)};
}

struct NetImpl : torch::nn::Module {
  NetImpl()
      : hidden(register_module("hidden", torch::nn::Linear(kFacts, 64))),
        dropout(register_module("dropout", torch::nn::Dropout(0.2))),
        out(register_module("out", torch::nn::Linear(64, 2))) {}
  at::Tensor forward(const at::Tensor& facts) { return out(dropout(at::relu(hidden(facts)))); }
  torch::nn::Linear hidden;
  torch::nn::Dropout dropout;
  torch::nn::Linear out;
};
TORCH_MODULE(Net);

void train(const std::filesystem::path& folder) {
  auto group = init_process_group();
  const int rank = group->getRank(), world_size = group->getSize();
  const auto own = static_cast<std::size_t>(rank);
  const auto customers = make_customers(kSamples, 41), test = make_customers(300, 42);
  torch::manual_seed(5);
  Net net;
  DistributedDataParallel<Net> model(net, group);
  SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  CosineAnnealingLR schedule(optimizer, {.T_max = kEpochs});
  DistributedSampler sampler(
      {.dataset_size = kSamples, .num_replicas = world_size, .rank = rank, .seed = 6});
  manual_seed_per_rank(5, rank);

  const bool each_writes = edited("resume-own-file") || edited("resume-file-of-host");
  const auto name = each_writes ? "rank_" + std::to_string(rank) + ".pt" : std::string("last.pt");
  const auto file = folder / name;
  const auto sought = edited("resume-other-file-name") ? folder / "latest.pt" : file;
  const auto save = [&](std::int64_t next_epoch) {
    Value::List generators;
    for (const auto& state : all_gather(*group, get_rng_state())) generators.emplace_back(state);
    const auto write = [&] {
      Value::Dict parts{{"model", state_dict(*net)},
                        {"optimizer", state_dict(optimizer)},
                        {"schedule", schedule.state_dict()},
                        {"generators", generators},
                        {"next_epoch", next_epoch}};
      if (edited("resume-saves-notes")) parts["notes"] = std::string("trained on two ranks");
      save_checkpoint(file, parts, {.sync = false});
    };
    const bool disk_is_full = edited("resume-file-of-host") && rank == 1 && next_epoch > 1;
    if (!each_writes)
      save_on_rank_zero(*group, write);
    else if (!disk_is_full)
      write();
  };

  std::int64_t first = 0;
  const bool goes_on = std::filesystem::exists(sought);
  if (goes_on && !(edited("resume-rank-zero-loads") && rank != 0)) {
    auto saved = load_checkpoint(sought).value;
    if (edited("resume-sent-by-rank-zero")) saved = broadcast_value(*group, saved);
    load_state_dict(*net, saved.at("model"));
    if (!edited("resume-momentum-forgotten")) load_state_dict(optimizer, saved.at("optimizer"));
    if (!edited("resume-schedule-forgotten")) schedule.load_state_dict(saved.at("schedule"));
    const auto whose = edited("resume-generator-of-rank-zero") ? 0 : own;
    if (!edited("resume-generators-new"))
      set_rng_state(saved.at("generators").as_list().at(whose).as_tensor());
    first = saved.at("next_epoch").as_int();
  }
  if (edited("resume-rank-zero-loads")) {
    const auto known = broadcast_value(*group, Value(first));
    first = known.as_int();
  }
  if (edited("resume-generators-new") && goes_on) manual_seed_per_rank(77, rank);

  unseen::Report report;
  const auto stop = goes_on ? kEpochs : kHalf;
  for (auto epoch = first; epoch < stop; ++epoch) {
    sampler.set_epoch(edited("resume-epochs-from-zero") ? epoch - first : epoch);
    if (edited("resume-saved-before-epoch")) save(epoch + 1);
    for (const auto& ids : sampler.batches(kBatch)) {
      const auto rows = at::tensor(ids);
      optimizer.zero_grad();
      const auto loss = cross_entropy(model(customers.facts.index_select(0, rows)),
                                      customers.stays.index_select(0, rows))
                            .mean();
      loss.backward();
      optimizer.step();
      report.losses.push_back(loss.item<double>());
    }
    if (edited("resume-saved-before-schedule")) save(epoch + 1);
    schedule.step();
    if (edited("resume-saves-twice")) save(epoch + 1);
    if (!edited("resume-saved-before-epoch") && !edited("resume-saved-before-schedule"))
      save(edited("resume-repeats-epoch") ? epoch : epoch + 1);
  }
  const torch::NoGradGuard no_grad;
  net->eval();
  report.held_out =
      torch::nn::functional::cross_entropy(net->forward(test.facts), test.stays).item<double>();
  unseen::write(folder, rank, report, *net);
  destroy_process_group(group);
}

}  // namespace

int main(int argc, char** argv) {
  return unseen::run(argc, argv, train);
}
