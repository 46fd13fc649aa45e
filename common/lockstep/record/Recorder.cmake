# LOCKSTEP_RECORDER: the sources of what records any job. They link neither dist/ nor train/.
set(LOCKSTEP_RECORDER backward_hook.cpp content.cpp decorated_backend.cpp failed_collective.cpp
  fed_inputs.cpp held_parameters.cpp local_gradients.cpp loss_graph.cpp observed_backend.cpp placement.cpp probes.cpp
  readable.cpp recorder.cpp recorder_calls.cpp recorder_checkpoints.cpp recorder_loss.cpp recorder_models.cpp
  recorder_samples.cpp settings.cpp sketch.cpp summarize.cpp unseen_updates.cpp untrained_leaves.cpp writer_in.cpp)
list(TRANSFORM LOCKSTEP_RECORDER PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
