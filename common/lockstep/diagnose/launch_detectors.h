// The detectors of how a job is launched: where its ranks stand, and what is around them; and the rule of
// each. As in detectors.h. All look at the last attempt of a job.
#pragma once

#include <lockstep/diagnose/diagnose.h>

namespace lockstep::diagnose {

// ---- placing.cpp ----

// Need `place` and `device`. A rank chose a device beyond those it sees, and
// rank-as-device-index      its index is its rank, which is not its local rank (or is so on no rank but
//                           by chance: all ranks index by rank)
// visible-devices-remapped  its index is its local rank, and the node has devices that it does not see;
//                           also where ranks see one device under different indices, and chose it
Verdict rank_as_device_index(const trace::Trace& trace);
Verdict visible_devices_remapped(const trace::Trace& trace);

// Needs `device`. Rule: ranks chose one and the same device, under one index.
Verdict duplicate_gpu(const trace::Trace& trace);

// Needs `device` of both moments. Rule: a rank's process group was made on another device than the rank
// chose, and that one is another rank's too.
Verdict device_not_set(const trace::Trace& trace);

// Needs `place`, `shard`, `dataset` and `reduced_gradients` of all ranks. Rule: ranks that are replicas (their
// reduced gradients are equal) on several nodes hold the same data, and each splits them into as many
// shards as its node has ranks or devices, of which no two ranks of a node share one.
Verdict world_size_from_device_count(const trace::Trace& trace);

// Needs `place` of every rank. Advice. Rule: in training, ranks that may use the same processors compute with
// more threads than those are, and some with several.
Verdict thread_oversubscription(const trace::Trace& trace);

// ---- starting.cpp ----

// Need `store_call` of a rank that serves (under torchrun none does). Of several tries the last counts, and
// none of a rank that joined a group all the same.
// fixed-port               a rank could not serve the store, since the port was taken
// wrong-network-interface  (`group` too) a rank served it, and others, neither much later nor much
//                          earlier than it, could not connect to where they went. To blame is the one
//                          that serves, or, where most came through, those that did not
Verdict fixed_port(const trace::Trace& trace);
Verdict wrong_network_interface(const trace::Trace& trace);

// Needs `store_call`, uses too, and the launcher's trace. Rule: a use of the store failed after the rank that
// served it had ended in order.
Verdict group_never_destroyed(const trace::Trace& trace);

// Needs `spawn`. Rule: several ranks each started all processes of a job of several ranks.
Verdict spawn_under_launcher(const trace::Trace& trace);

// Needs `data_file`. Rule: several ranks write a file, and one of them, or a reader, came to it while
// another wrote. Advice where nobody found half a file (and, `place`, both are on one node).
Verdict every_rank_prepares_data(const trace::Trace& trace);

// ---- streams.cpp ----

// Needs `stream_use`. Rule: a stream reads a buffer that another writes, or writes one that another uses, and
// nothing orders the two: one stream's order, events recorded and waited for, and the program's own waiting
// (happens-before, by vector clocks). Says so where it went well, too: which of them is first is chance. Not fooled by
// stream 0, the legacy default stream, which orders all others. Blind to what is not told: blocking streams, calls
// that synchronize on their own (trace.md).
Verdict wrong_stream(const trace::Trace& trace);

// ---- shared_memory.cpp ----

// Needs `shared_memory`; `rank_end` tells of a bus error. Rule: a rank was refused what it reserves (ENOSPC), and did
// not end in order; or a bus error ends it, and it, or the ranks together, reserve more than there was. Not fooled by a
// small one in which all has room, by a rank that does without, nor by another death.
Verdict small_shared_memory(const trace::Trace& trace);

}  // namespace lockstep::diagnose
