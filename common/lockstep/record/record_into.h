// A job of yours, recorded with one include and one call:
//
//   InitOptions options;
//   auto writer = record::record_into(options, "traces");
//   auto group = init_process_group(options);
//
// Or with none: a program that links lockstep::record, and makes its groups with init_process_group, is recorded where
// LOCKSTEP_TRACE names a folder.
//
// `lockstep diagnose traces` then names what is wrong. Recorded are the groups and their collectives, and what this
// library's DistributedDataParallel, samplers, optimizers (train/watched.h), losses (train/loss.h), schedules,
// GradScaler, clipping and checkpoints tell of themselves; record/recorder.h has what only the program knows. An engine
// of your own tells it with record::Probes.
#pragma once

#include <lockstep/dist/process_group.h>
#include <lockstep/trace/writer.h>

#include <filesystem>
#include <memory>

namespace lockstep::record {

// Call it on every rank, after rank and world_size are set (or left to the launcher's environment) and
// before the group is made. Makes the folder and this rank's file in it, and sets options.decorate and
// options.on_store so that groups made with these options are recorded: every collective, how the rank came
// to the store, and, once its first group is there, its place. What the two did before is still done, under
// the recording. The options keep the writer alive. Not collective; each rank writes a file of its
// own, so that ranks of several machines may use one shared folder, or have theirs copied into one.
//
// Where a launcher may start the job again (TORCHELASTIC_MAX_RESTARTS above 0: torchrun, supervise_attempts),
// each attempt has a folder of its own inside, attempt_0, attempt_1, ..., which `lockstep diagnose` reads as one.
//
// At the probed steps (probes.h) numbers are read from the device: no CUDA graph can be captured there.
//
// Throws Error where the folder or the file cannot be made, or this rank's file is there already (record each
// run into a folder of its own), and UsageError for a rank that cannot be. A group that the writer's rank
// cannot be in, because rank or world_size were set too late, throws UsageError when it is made.
std::shared_ptr<trace::Writer> record_into(InitOptions& options,
                                           const std::filesystem::path& folder);

}  // namespace lockstep::record
