#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/base/say.h>
#include <lockstep/launch/launch.h>
#include <lockstep/prove/begin.h>
#include <lockstep/record/lines.h>
#include <lockstep/record/observed_backend.h>
#include <lockstep/record/probes.h>
#include <lockstep/record/record_into.h>
#include <lockstep/record/recorder.h>
#include <lockstep/record/writer_in.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>

namespace lockstep::record {
namespace {

// Whom init_process_group will take this process for.
trace::Participant participant_of(const InitOptions& options) {
  const bool given = options.rank >= 0 && options.world_size >= 1;
  const auto place = given ? launch::Placement{}
                           : launch::placement_from_environment().value_or(launch::Placement{});
  return {.rank = options.rank >= 0 ? options.rank : place.rank,
          .world_size = options.world_size >= 1 ? options.world_size : place.world_size};
}

void check_size(const c10d::Backend& backend, const trace::Participant& participant) {
  if (backend.getSize() <= participant.world_size) return;
  throw UsageError("record_into: a group of " + std::to_string(backend.getSize()) +
                   " ranks, and it was told of " + std::to_string(participant.world_size) +
                   ". Call it after options.rank and options.world_size are set");
}

// The options keep the recorder alive, and so do the groups made with them.
void add_to(InitOptions& options, const std::shared_ptr<Recorder>& recorder) {
  const auto writer = recorder->writer();
  const auto placed = std::make_shared<std::atomic<bool>>(false);
  options.decorate = [recorder, writer, placed, before = std::move(options.decorate)](
                         BackendPtr backend, const StorePtr& store) {
    check_size(*backend, writer->participant());
    if (!placed->exchange(true)) record_placement(*writer);
    if (before) backend = before(std::move(backend), store);
    return observe(std::move(backend), writer, recorder);
  };
  options.on_store = [tell = tell_of_store(writer),
                      before = std::move(options.on_store)](const StoreOpening& opening) {
    if (before) before(opening);
    tell(opening);
  };
}

std::shared_ptr<Recorder> start(const InitOptions& options, const std::filesystem::path& folder) {
  const ProbeOptions probes{.also = probe_stretch_from_environment()};
  auto recorder = std::make_shared<Recorder>(writer_in(folder, participant_of(options)), probes);
  lockstep::observe(recorder);
  return recorder;
}

std::atomic<bool> asked_for{false};  // by the program itself

// Of every group's options, before it is made. Nobody wrote a line for it, so nothing of it ends the program.
void record_where_asked(InitOptions& options) {
  static std::mutex mutex;
  // Until the process ends: it may make a group once more.
  static std::shared_ptr<Recorder> recorder;
  static std::shared_ptr<Lines> lines;
  static bool tried = false;
  const auto folder = environment("LOCKSTEP_TRACE");
  if (!folder || asked_for) return;
  const std::lock_guard lock(mutex);
  try {
    if (!recorder && recorder_here()) return;  // somebody listens already
    if (!std::exchange(tried, true)) {
      std::at_quick_exit([] {
        lines.reset();
        recorder.reset();
      });
      recorder = start(options, *folder);
      lines = std::make_shared<Lines>(folder_in(*folder), recorder->writer());
      lockstep::observe(lines);
    }
    if (!recorder) return;
    const auto here = participant_of(options), known = recorder->writer()->participant();
    if (here.rank != known.rank || here.world_size > known.world_size)
      throw UsageError("rank " + std::to_string(here.rank) + " of " +
                       std::to_string(here.world_size) +
                       " is not recorded: this process is, as rank " + std::to_string(known.rank) +
                       " of " + std::to_string(known.world_size));
    add_to(options, recorder);
  } catch (const std::exception& error) {
    say(std::string("LOCKSTEP_TRACE: ") + error.what() + "\n");
  }
}

}  // namespace

std::shared_ptr<trace::Writer> record_into(InitOptions& options,
                                           const std::filesystem::path& folder) {
  asked_for = true;
  const auto recorder = start(options, folder);
  add_to(options, recorder);
  return recorder->writer();
}

}  // namespace lockstep::record

// The linker is told to look for it (CMakeLists.txt), and so does not drop this file, which nothing else may name.
extern "C" const bool lockstep_record_is_linked = [] {
  if (!lockstep::prove::begin_where_asked())
    lockstep::prepare_groups(lockstep::record::record_where_asked);
  return true;
}();
