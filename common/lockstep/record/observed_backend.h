// Sees every collective of any c10d user, c10d::Reducer included, and writes it into the trace.
#pragma once

#include <lockstep/dist/process_group.h>
#include <lockstep/trace/writer.h>

#include <memory>

namespace lockstep::record {

class Recorder;

// Decorates a backend: forwards everything, records what is entered and left. Hand the result to a
// process group as its backend (InitOptions::decorate). The writer is kept alive as long as work is
// pending. What fails is also kept for failed_collective_of() (record/failed_collective.h).
//
// A group is named in the trace as the process group names it, and where one writer observes
// several groups of a name, with a number ("0", "0#2"). Ranks that make their groups in the same
// order give them the same names.
//
// trace::Collective's fields: `sizes` are those of the inputs, but for scatter and reduce_scatter,
// whose inputs are lists, of the outputs. Collectives are numbered from 1 in each group; send and
// recv have a count of their own, since only two ranks take part. An operation is left when its
// work is done (Gloo: before wait() returns; NCCL: when its watchdog sees it, with a delay of some
// 0.1 s); send and recv over Gloo when the program waits for them.
// `recorder` is told of each collective, and lives as long as the backend does; null: recorder_here() is told.
BackendPtr observe(BackendPtr backend, std::shared_ptr<trace::Writer> writer,
                   std::shared_ptr<Recorder> recorder = nullptr);

}  // namespace lockstep::record
