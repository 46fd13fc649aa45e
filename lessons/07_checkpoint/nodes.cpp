// Lesson 07, part "nodes": each node has a LOCAL_RANK 0.
//
// Concept:  RANK counts through the whole job, LOCAL_RANK starts from 0 on every node. A folder
//           that all nodes share needs one writer: RANK 0. A disk of each node's own needs one
//           writer a node: LOCAL_RANK 0.
// Symptom:  on one node all is well. On two nodes two ranks write the same file.
//
// Here all ranks are on one machine, and are numbered as if on two nodes.
#include "parts.h"
#include "run.h"

namespace {

using namespace checkpoint_lesson;

void train(RankContext& context, const Fault& fault) {
  const int ranks_a_node = (context.world_size() + 1) / 2;
  const int node = context.rank() / ranks_a_node, local_rank = context.rank() % ranks_a_node;
  const Place place{local_rank};

  const auto data = training_data(context);
  auto sampler = sampler_of(context, data);
  auto file = context.folder() / "checkpoint.pt";
  Run run(context, data);
  context.probes().start();
  run.epoch(sampler, 0);
  const Value checkpoint =
      Value::Dict{{"model", state_dict(*run.model)}, {"saved_by", context.rank()}};

  if (fault("local-rank-zero-writes")) {  // PITFALL local-rank-zero-writes
    write_among_others(context, file, checkpoint, /*writes=*/local_rank == 0, place);
  } else if (fault("near-miss-folder-a-node")) {
    file = context.folder() / ("node_" + std::to_string(node)) / "checkpoint.pt";
    if (local_rank == 0) write_checkpoint(context, file, checkpoint, {}, place);
    barrier(*context.group());
  } else {
    if (context.rank() == 0) write_checkpoint(context, file, checkpoint, {}, place);
    barrier(*context.group());
  }
  load_state_dict(*run.model, read_checkpoint(context, file).at("model"));
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
                           .naive_check = "local rank 0 of every node saves"}}};
}
