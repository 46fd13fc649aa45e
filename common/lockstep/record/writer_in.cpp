#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/record/writer_in.h>
#include <lockstep/trace/attempts.h>

#include <system_error>

namespace lockstep::record {

std::shared_ptr<trace::Writer> writer_in(std::filesystem::path folder,
                                         const trace::Participant& participant) {
  const int restarts = environment_int("TORCHELASTIC_MAX_RESTARTS").value_or(0);
  const int attempt = environment_int("TORCHELASTIC_RESTART_COUNT").value_or(0);
  if (restarts > 0) folder = trace::attempt_folder(folder, attempt);
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) throw Error("cannot make the folder " + folder.string() + ": " + failure.message());
  auto writer = std::make_shared<trace::Writer>(folder, participant);
  if (restarts > 0) writer->record(trace::Attempt{attempt, restarts});
  return writer;
}

}  // namespace lockstep::record
