// Lesson 10, part "rendezvous": how the ranks find each other, and who leaves last.
//
// Concept:  rank 0 serves a store at MASTER_ADDR and MASTER_PORT (under torchrun the agent does),
//           and all ranks connect to it. The port must be free, the address one that all reach, and
//           no rank may use the store after rank 0 has left: it ends with rank 0.
// Symptom:  "address already in use", as soon as two jobs with one port share a machine. A
//           connection that times out, where the host's name stands for an interface that others do
//           not reach. An error at the end of a good run, on ranks that still use the store.
#include <c10/util/Exception.h>
#include <lockstep/base/error.h>
#include <lockstep/lesson/batches.h>
#include <lockstep/train/dataset.h>
#include <lockstep/train/models.h>

#include <cerrno>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "machine.h"
#include "parts.h"

namespace {

using namespace lockstep;

std::string word_of(int rank) {
  return "loss_of_rank_" + std::to_string(rank);
}

// Reports this rank's loss through the store, and waits for the store's answer.
void report(RankContext& context, c10d::Store& store, double loss) {
  const auto tell_use = [&](int error) {
    context.told().tell(trace::StoreCall{"use", "", 0, error});
  };
  try {
    store.set(word_of(context.rank()), std::to_string(loss));
    store.add("reported", 1);
  } catch (const c10::DistNetworkError&) {
    tell_use(ECONNRESET);
    throw Error("rank " + std::to_string(context.rank()) +
                " cannot report: the store is gone, and rank 0 with it");
  }
  tell_use(0);
  add_figure(context, "reported", 1);
}

// A near miss: no rank destroys the group; rank 0, which serves the store, leaves last.
void wait_for_reports(RankContext& context, c10d::Store& store) {
  for (int rank = 1; context.rank() == 0 && rank < context.world_size(); ++rank)
    store.wait({word_of(rank)});
}

// The work: the loss of an untrained model on this rank's part of the data. Of all ranks' the mean
// is written down.
double work(RankContext& context, c10d::ProcessGroup& group) {
  const auto data = fashion_mnist_or_synthetic(Split::test, 64L * context.world_size());
  const auto batch =
      take(data, share_of(context.rank(), context.world_size(), all_ids(data.size())));
  auto loss = torch::cross_entropy_loss(Mlp(784, 32, 10)->forward(batch.inputs), batch.targets)
                  .detach()
                  .to(context.device());
  const double own = loss.item<double>();
  all_reduce(group, loss);
  context.outcome().losses.push_back(loss.item<double>() / context.world_size());
  return own;
}

void meet(RankContext& context, const Fault& fault) {
  // Another job has its store on this machine.
  const auto other = fault("near-miss-other-job-has-ended") ? OtherJob::has_ended : OtherJob::runs;
  const Machine machine(context, other);

  int port = fault("fixed-port") ? machine.other_jobs_port() : machine.free_port();
  if (fault("near-miss-other-job-has-ended")) port = machine.other_jobs_port();
  std::string address = "127.0.0.1";
  if (fault("wrong-network-interface") && context.rank() == 0)
    address = "127.0.0.2";  // To rank 0 its own name stands for another of its interfaces.
  if (fault("near-miss-another-interface-for-all")) address = "127.0.0.2";
  auto group =
      context.init_process_group({.init_method = "tcp://" + address + ":" + std::to_string(port),
                                  .timeout = context.patience()});
  const auto store = group->getStore();
  const double loss = work(context, *group);

  if (fault("group-never-destroyed")) {
    // Rank 0 leaves main once it has reported, and its store with it. The others are slower.
    if (context.rank() != 0) machine.until_rank_zero_is_gone();
    report(context, *store, loss);
  } else {
    report(context, *store, loss);
    if (fault("near-miss-rank-zero-leaves-last")) return wait_for_reports(context, *store);
    barrier(*group);
    context.destroy_process_group(group);
  }
}

Measured ranks_that_reported(const Outcomes& outcomes) {
  double reported = 0;
  for (const auto& outcome : outcomes) reported += outcome.figures.count("reported") ? 1 : 0;
  return {.expected = static_cast<double>(outcomes.size()), .observed = reported};
}

}  // namespace

Part rendezvous_part() {
  const Oracle oracle{"ranks that worked, and reported it", ranks_that_reported};
  return {
      .name = "rendezvous",
      .run = meet,
      .broken = {{.slug = "fixed-port",
                  .what = "two jobs on one machine use the same MASTER_PORT",
                  .oracle = oracle,
                  .crashes = true},
                 {.slug = "wrong-network-interface",
                  .what = "rank 0 serves its store on an interface that the others do not reach",
                  .oracle = oracle,
                  .crashes = true},
                 {.slug = "group-never-destroyed",
                  .what = "rank 0 leaves without destroying the group, and the others still work",
                  .oracle = oracle,
                  .crashes = true}},
      .near_misses = {{.name = "near-miss-other-job-has-ended",
                       .slug = "fixed-port",
                       .naive_check = "MASTER_PORT is a number that another job uses too"},
                      {.name = "near-miss-another-interface-for-all",
                       .slug = "wrong-network-interface",
                       .naive_check = "the store is on another interface than the ranks"},
                      {.name = "near-miss-rank-zero-leaves-last",
                       .slug = "group-never-destroyed",
                       .naive_check = "no rank calls destroy_process_group"}},
      .participants = Participants::strangers};
}
