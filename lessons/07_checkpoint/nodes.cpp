// Lesson 07, part "nodes": each node has a LOCAL_RANK 0.
//
// Concept:  RANK counts through the whole job, LOCAL_RANK starts from 0 on every node. A folder
//           that all nodes share needs one writer: RANK 0. A disk of each node's own needs one
//           writer a node: LOCAL_RANK 0.
// Symptom:  on one node all is well. On two nodes two ranks write the same file.
//
// Here all ranks are on one machine, and are numbered as if on two nodes.
#include <lockstep/base/environment.h>
#include <lockstep/lesson/lesson.h>

#include <cstdlib>

#include "run.h"

namespace {

using namespace checkpoint_lesson;

int ranks_a_node(const RankContext& context) {
  return (context.world_size() + 1) / 2;
}

// What a launcher would set on two nodes.
void number_as_on_two_nodes(const RankContext& context) {
  setenv("LOCAL_RANK", std::to_string(context.rank() % ranks_a_node(context)).c_str(), 1);
}

// The near miss's file, on a disk of the node's own.
std::filesystem::path file_of_node(const RankContext& context) {
  const int node = context.rank() / ranks_a_node(context);
  return context.folder() / ("node_" + std::to_string(node)) / "checkpoint.pt";
}

void train(RankContext& context, const Fault& fault) {
  number_as_on_two_nodes(context);
  const auto data = training_data(context);
  auto sampler = sampler_of(context, data);
  auto file = context.folder() / "checkpoint.pt";
  Run run(context, data);
  run.epoch(sampler, 0);
  const Value checkpoint =
      Value::Dict{{"model", state_dict(*run.model)}, {"saved_by", context.rank()}};

  if (fault("local-rank-zero-writes")) {
    write_among_others(context, file, checkpoint, /*writes=*/environment_int("LOCAL_RANK") == 0);
  } else if (fault("near-miss-folder-a-node")) {
    file = file_of_node(context);
    if (environment_int("LOCAL_RANK") == 0) save_checkpoint(file, checkpoint);
    barrier(*context.group());
  } else {
    if (context.rank() == 0) save_checkpoint(file, checkpoint);
    barrier(*context.group());
  }
  const auto loaded = load_checkpoint(file, {.map_location = context.device()});
  load_state_dict(*run.model, loaded.at("model"));
}

}  // namespace

lockstep::Part nodes_part() {
  return {.name = "nodes",
          .run = train,
          .broken = {{.slug = "local-rank-zero-writes",
                      .what = "LOCAL_RANK 0 of every node saves to the folder they share",
                      .oracle = {"whole checkpoints that a rank finds", readable_checkpoints},
                      .crashes = true}},
          .near_misses = {{.name = "near-miss-folder-a-node",
                           .slug = "local-rank-zero-writes",
                           .naive_check = "local rank 0 of every node saves"}},
          .notes = notes<Loads>};
}
