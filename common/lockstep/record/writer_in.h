// This process's file in a job's folder of traces.
#pragma once

#include <lockstep/trace/writer.h>

#include <filesystem>
#include <memory>

namespace lockstep::record {

// Where this process's file goes: attempt_N/ of the job's folder where a launcher may start the job again
// (TORCHELASTIC_MAX_RESTARTS above 0). Throws UsageError for a variable that is no number.
std::filesystem::path folder_in(const std::filesystem::path& job_folder);

// Makes that folder and the participant's file in it. Not collective. Throws Error where one of the two cannot be made, or
// the file is there already, and UsageError for an impossible rank, or a variable that is no number.
std::shared_ptr<trace::Writer> writer_in(const std::filesystem::path& job_folder,
                                         const trace::Participant& participant);

}  // namespace lockstep::record
