#include <lockstep/base/error.h>
#include <lockstep/base/random_word.h>
#include <lockstep/trace/format.h>
#include <lockstep/trace/own_file.h>
#include <lockstep/trace/reader.h>
#include <unistd.h>

#include <string>
#include <system_error>

namespace lockstep::trace {

const Participant& checked(const Participant& participant) {
  if (participant.rank < 0 || participant.rank >= participant.world_size)
    throw UsageError("a trace of rank " + std::to_string(participant.rank) + " of " +
                     std::to_string(participant.world_size) +
                     ": ranks go from 0 to the world size minus 1");
  if (participant.kind.size() >= sizeof FileHeader::kind)
    throw UsageError("a participant's kind has at most 15 bytes: \"" + participant.kind + "\"");
  return participant;
}

std::filesystem::path file_of(const std::filesystem::path& folder, const Participant& participant) {
  return participant.kind == kLauncher ? launcher_file(folder)
                                       : trace_file(folder, participant.rank);
}

namespace {

// Whether a writer of this process has it. In another container, another process may have the same pid.
bool is_written_here(const std::filesystem::path& file) {
  std::error_code none;
  if (read_flight_board(file).pid != getpid()) return false;
  for (const auto& open : std::filesystem::directory_iterator("/proc/self/fd"))
    if (std::filesystem::equivalent(open.path(), file, none)) return true;
  return false;
}

}  // namespace

bool may_stand_beside(const Participant& participant, const std::filesystem::path& there) {
  if (participant.world_size > 1)
    return participant.kind != kLauncher && !has_joined(there.parent_path(), participant.rank);
  return is_being_written(there) && !is_written_here(there);
}

std::filesystem::path file_beside(const std::filesystem::path& folder,
                                  const Participant& participant) {
  return folder / ("rank_" + std::to_string(participant.rank) + "." + random_word() + ".trace");
}

}  // namespace lockstep::trace
