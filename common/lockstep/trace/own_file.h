// Which file is a participant's. Private to the writer.
#pragma once

#include <lockstep/trace/writer.h>

#include <filesystem>

namespace lockstep::trace {

// The same. Throws UsageError for what the reader would refuse.
const Participant& checked(const Participant& participant);

std::filesystem::path file_of(const std::filesystem::path& folder, const Participant& participant);

// Whether a trace that is there leaves room for another of this participant, in a file of its own: a process that takes
// itself for the only one may not be; and one that a rank started has the rank's number, and joins no group.
bool may_stand_beside(const Participant& participant, const std::filesystem::path& there);

std::filesystem::path file_beside(const std::filesystem::path& folder,
                                  const Participant& participant);

}  // namespace lockstep::trace
