// The detectors of jobs that stop, or that mix up their collectives, and the rule of each. As in
// detectors.h. All look at the last attempt of a job.
#pragma once

#include <lockstep/diagnose/diagnose.h>

namespace lockstep::diagnose {

// ---- mismatches.cpp ----
//
// They name the first place at which ranks called different collectives (as collective-mismatch
// does) by how the calls differ:
//   dtype-, reduce-op-, root-, shape-mismatch
//                                the operation is the same, and what is named differs (the first of
//                                these that does)
//   order-mismatch               from there on the ranks call the same ones in another order; or the
//                                operations differ, and each side calls the other's elsewhere
//   rank-conditional-collective  some ranks call one more: theirs is never called by the others,
//                                whose call is theirs next, or was theirs before. Also where some
//                                wait in a collective before which the others ended in order
// One more call of the same operation, with other sizes, cannot be told from a call whose sizes are
// wrong unless what follows was recorded; both are a shape-mismatch then.
Verdict order_mismatch(const trace::Trace& trace);
Verdict rank_conditional_collective(const trace::Trace& trace);
Verdict dtype_mismatch(const trace::Trace& trace);
Verdict reduce_op_mismatch(const trace::Trace& trace);
Verdict root_mismatch(const trace::Trace& trace);
Verdict shape_mismatch(const trace::Trace& trace);

// ---- communicators.cpp ----

// Needs collectives of two groups. Rule: the first calls that two ranks do not complete are of two groups that
// both are in, neither has completed the other's, and both ranks waited. Not fooled by ranks that make all calls in
// one order and wait for them in another, nor by groups of which a rank that waits is no member, nor by a root that
// got through a call in which the others wait for somebody else.
Verdict communicator_order(const trace::Trace& trace);

// ---- joining.cpp ----

// Both need `group` events. A rank began to join a group, and not all of its ranks came.
// rank-skips-init: the group is the first that was made, and a rank of the job never began to join
// it. subgroup-created-by-members-only: it is a later one, and ranks that are no members of it never
// took part in making it.
Verdict rank_skips_init(const trace::Trace& trace);
Verdict subgroup_created_by_members_only(const trace::Trace& trace);

// ---- hanging.cpp ----

// Needs `decision`. Rule: by the decision "stop" of the same number, ranks went apart.
Verdict local_early_stop(const trace::Trace& trace);

// Need the launcher's trace. Rule: what explains where the job stands still (standstill.h) is a rank
// that was ended by a signal; or, one-rank-raises, ranks that left by exceptions of their own.
Verdict peer_dies(const trace::Trace& trace);
Verdict one_rank_raises(const trace::Trace& trace);

// Need collectives. A rank entered a collective when a peer had given it up. rank-zero-long-work:
// it is rank 0, and since its collective before it alone evaluated or wrote a checkpoint; else
// slow-rank.
Verdict slow_rank(const trace::Trace& trace);
Verdict rank_zero_long_work(const trace::Trace& trace);

// Needs `pass_begin`, `pass_end` and collectives. Rule: in one place some ranks' call belongs to an
// evaluation, and the others' to training; or they have none there, and the job stands still.
Verdict evaluation_through_wrapper_on_one_rank(const trace::Trace& trace);

// Needs `async_result`. Rule: what was used is not what was there after the wait.
Verdict async_work_not_waited(const trace::Trace& trace);

// ---- restarts.cpp ----

// Needs `attempt` of two attempts, `training_state`, `pass_begin`, and `pass_end` or a next pass. Rule: a later attempt
// began with an epoch after which the state had been saved, and loaded nothing.
Verdict restart_without_resume(const trace::Trace& trace);
// Needs `attempt` (by which a program says that it is made for restarts), `training_state` and the
// launcher's trace. Rule: a job that saves its state ended with a rank's failure, and its launcher was to
// start it once only.
Verdict restart_expected_by_default(const trace::Trace& trace);

// ---- hanging.cpp ----

// Generic. Rule: standstill.h; or, without one, ranks were left in operations with one peer.
Verdict no_progress(const trace::Trace& trace);

}  // namespace lockstep::diagnose
