// A job that was started again: the traces of its attempts as one.
#pragma once

#include <lockstep/trace/reader.h>

#include <filesystem>
#include <vector>

namespace lockstep::trace {

// The folder of one attempt's traces, counted from 0.
std::filesystem::path attempt_folder(const std::filesystem::path& job_folder, int attempt);
// Those that are there, in order; the job's folder itself where there are none. If that folder has no rank's trace, its
// subfolder `alone`: traces of Python processes that were not told a rank and joined no group.
std::vector<std::filesystem::path> attempt_folders(const std::filesystem::path& job_folder);

// What each rank did, attempt after attempt in the order given, so that detectors see what was saved in one
// and resumed in another. Steps go on counting: a later attempt's come after the last one's, its "before
// training" (-1) too. Groups of a later attempt are others, since their sequences begin anew. A rank that
// left no trace in an attempt has nothing there; one that left none in any is absent. What a rank trained for itself
// before an attempt's job is left out (alone_before.h).
//
// Throws Error where the attempts have different world sizes: whose rank 3 went on as which is not known.
Trace concatenate(std::vector<Trace> attempts);

// All attempts in a job's folder as one. Throws what read() and concatenate() throw.
Trace read_job(const std::filesystem::path& job_folder);

}  // namespace lockstep::trace
