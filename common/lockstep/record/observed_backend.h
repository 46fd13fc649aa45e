// Sees every collective of any c10d user, c10d::Reducer included, and writes it into the trace.
#pragma once

#include <lockstep/dist/process_group.h>
#include <lockstep/trace/writer.h>

#include <memory>

namespace lockstep::record {

// Decorates a backend: forwards everything, records what is entered and left. Hand the result to a
// process group as its backend (InitOptions::decorate). The writer is kept alive as long as work is
// pending.
//
// trace::Collective's fields: `sizes` are those of the inputs, but for scatter and reduce_scatter,
// whose inputs are lists, of the outputs. Collectives are numbered from 1 in each group; send and
// recv have a count of their own, since only two ranks take part. An operation is left when its
// work is done (Gloo: before wait() returns; NCCL: when its watchdog sees it, with a delay of some
// 0.1 s); send and recv over Gloo when the program waits for them.
BackendPtr observe(BackendPtr backend, std::shared_ptr<trace::Writer> writer);

}  // namespace lockstep::record
