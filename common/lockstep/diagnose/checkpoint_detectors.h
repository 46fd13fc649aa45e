// The detectors of checkpoints; detectors.h says how to read the comments.
#pragma once

#include <lockstep/diagnose/diagnose.h>

namespace lockstep::diagnose {

// What is saved and what is resumed are compared within one trace of a rank: one process that saves and goes
// on from it, or the traces of a job's attempts put together (trace/attempts.h; `lockstep diagnose` given each
// attempt's folder). Of an attempt alone, in which nothing was saved before it resumed, checkpoint_state.cpp and
// checkpoint_position.cpp say not_triggered.

// ---- checkpoint_files.cpp ----

// Needs every rank's load and its device; W > 1. Rule: a rank loads to the device that the file was saved
// from, which is another rank's. Not fooled by a load to the CPU, from where tensors are copied.
Verdict load_without_map_location(const trace::Trace& trace);

// Needs a load of a model's state, and the model. Rule: every name has the same prefix on one side and not
// on the other, and the rank does not go on with weights that were saved. Not fooled by a prefix that
// the program takes off, or has on both sides.
Verdict module_prefix(const trace::Trace& trace);

// Needs a save and loads of the same file; W > 1. Rule: a rank reads other bytes than the one writer wrote
// at the same step. Not fooled by ranks that begin with an older file, which the writer reads too before
// it saves, nor by an older file of another name.
Verdict read_before_written(const trace::Trace& trace);

// Needs saves; W > 1. Rule: several ranks write one file at one step, not all with LOCAL_RANK 0. Not fooled
// by a file a rank.
Verdict concurrent_writers(const trace::Trace& trace);

// Needs the same. Rule: the same, and all have LOCAL_RANK 0. Not fooled by a folder a node. With one rank a
// node, all ranks that write are local rank 0, and this is what is named. One path on each node's own disk
// looks the same; it is told where the nodes write different bytes, and each reads its own back after a
// collective that came after all had written. Where nodes write equal bytes, or read none, it is named though
// it is right.
Verdict local_rank_zero_writes(const trace::Trace& trace);

// Needs a save and loads. Rule: the last save of a file never ended, and a rank that looked there last found
// no whole checkpoint. Not fooled by a save that dies beside the older file, nor by one that is torn
// while the ranks find another. A reader that dies of a half-written file, and takes the writer down
// with it, looks the same.
Verdict torn_checkpoint(const trace::Trace& trace);

// ---- checkpoint_state.cpp: all compare the state that a rank resumed with what it held when a checkpoint
// with the same model was saved ----

// Rule: the optimizer's state is on a device where the model is not, or nowhere where it is, and the rank
// made no update after it. Not fooled by step counts, which live on the CPU.
Verdict optimizer_state_on_wrong_device(const trace::Trace& trace);

// Rule: the optimizer's state is another one. Not fooled by state that is in a file of its own. The state is
// one hash: a run that resumes with another learning rate or weight decay, by choice, is named too.
Verdict optimizer_state_missing(const trace::Trace& trace);

// Rule: the schedule, or a rank's random generator, is in another state. Not fooled by a schedule that is
// counted up again.
Verdict scheduler_or_rng_state_missing(const trace::Trace& trace);

// Needs two ranks or more that keep averaged weights. Rule: their averages differ though their weights do
// not. Not fooled by an average that only one rank has.
Verdict ema_on_one_rank(const trace::Trace& trace);

// ---- checkpoint_position.cpp: both need the states, passes and samples of all ranks ----

// Rule: the pass had ended when the checkpoint was saved (or had come as far as its repetition came, before the next
// pass), and the run goes on with the same epoch and the same order. Not fooled by an epoch's number that means the
// next one, nor by passes that are lost and made again because they came after the checkpoint.
Verdict resume_repeats_epoch(const trace::Trace& trace);

// Rule: the pass had not ended, and the run goes on in the same epoch with W or more samples that had been
// drawn from it. Not fooled by a sampler that starts over where the program throws away what was drawn, nor
// by an epoch that is given up. Where a pass draws with replacement, not_triggered.
Verdict resume_mid_epoch_replays(const trace::Trace& trace);

}  // namespace lockstep::diagnose
