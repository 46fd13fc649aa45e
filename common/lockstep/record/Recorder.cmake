# LOCKSTEP_RECORDER: the sources of what records any job. They link neither dist/ nor train/.
set(LOCKSTEP_RECORDER content.cpp decorated_backend.cpp drawn_samples.cpp failed_collective.cpp
  fed_inputs.cpp graph_cuts.cpp held_parameters.cpp kept_state.cpp local_gradients.cpp loss_graph.cpp
  observed_backend.cpp placement.cpp probes.cpp readable.cpp recorded_model.cpp recorder.cpp recorder_calls.cpp
  recorder_checkpoints.cpp recorder_loss.cpp settings.cpp sketch.cpp summarize.cpp unseen_updates.cpp
  untrained_leaves.cpp writer_in.cpp)
list(TRANSFORM LOCKSTEP_RECORDER PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
