// The detectors of how a job is launched: where its ranks stand, and what is around them; and the rule of
// each. As in detectors.h. All look at the last attempt of a job.
#pragma once

#include <lockstep/diagnose/diagnose.h>

namespace lockstep::diagnose {

// ---- placing.cpp ----

// Need `place` and `device`. A rank chose a device that is not there, and its index is
// rank-as-device-index      its rank, which is not its local rank
// visible-devices-remapped  its local rank, where it sees fewer devices than its node has ranks
Verdict rank_as_device_index(const trace::Trace& trace);
Verdict visible_devices_remapped(const trace::Trace& trace);

// Needs `device`. Rule: ranks chose one and the same device.
Verdict duplicate_gpu(const trace::Trace& trace);

// Needs `device` of both moments. Rule: a rank's process group was made on another device than the rank
// chose, and that one is another rank's too.
Verdict device_not_set(const trace::Trace& trace);

// Needs `place` and `shard`. Rule: the data are split into as many shards as a node has ranks, of a job
// on several nodes; and ranks that take the same shard hold the same data (`dataset`, where recorded).
Verdict world_size_from_device_count(const trace::Trace& trace);

// Needs `place` of every rank. Advice. Rule: at training, the ranks of a node compute with more threads
// than it has processors, and some with several.
Verdict thread_oversubscription(const trace::Trace& trace);

// ---- starting.cpp ----

// Need `store_call`. fixed-port: a rank could not serve the store, since the port was taken.
// wrong-network-interface (`group` too): a rank served it, and others, which did not begin to join much
// before it, could not connect to where they went. To blame is the one that serves, or, where most came
// through, those that did not.
Verdict fixed_port(const trace::Trace& trace);
Verdict wrong_network_interface(const trace::Trace& trace);

// Needs `store_call`, `group` and the launcher's trace. Rule: a use of the store failed after the process of
// the rank that served it had ended in order, without having let go of its group.
Verdict group_never_destroyed(const trace::Trace& trace);

// Needs `spawn`. Rule: a rank of several started processes that are ranks of several again.
Verdict spawn_under_launcher(const trace::Trace& trace);

// Needs `data_file`. Rule: a rank wrote or read a file while another was writing it.
Verdict every_rank_prepares_data(const trace::Trace& trace);

}  // namespace lockstep::diagnose
