// A job that is started again when it fails.
#pragma once

#include <lockstep/launch/supervise.h>

#include <vector>

namespace lockstep::launch {

// Runs the job, and again while it fails, at most `max_restarts` times more; not after Ctrl-C. Each
// attempt is a job of its own, with new processes and a fresh rendezvous, in
// trace::attempt_folder(job.folder, n); where max_restarts is 0, in job.folder. Its ranks see
// TORCHELASTIC_RESTART_COUNT and TORCHELASTIC_MAX_RESTARTS, as under torchrun. What the ranks go on
// from is theirs to find. The results of all attempts, in order.
std::vector<Supervised> supervise_attempts(const SuperviseOptions& options, int max_restarts);

}  // namespace lockstep::launch
