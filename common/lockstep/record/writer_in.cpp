#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/record/writer_in.h>
#include <lockstep/trace/attempts.h>

#include <system_error>

namespace lockstep::record {
namespace {

int restarts() {
  return environment_int("TORCHELASTIC_MAX_RESTARTS").value_or(0);
}

int attempt() {
  return environment_int("TORCHELASTIC_RESTART_COUNT").value_or(0);
}

}  // namespace

std::filesystem::path folder_in(const std::filesystem::path& job_folder) {
  if (restarts() <= 0) return job_folder;
  return trace::attempt_folder(job_folder, attempt());
}

std::shared_ptr<trace::Writer> writer_in(const std::filesystem::path& job_folder,
                                         const trace::Participant& participant) {
  const auto folder = folder_in(job_folder);
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) throw Error("cannot make the folder " + folder.string() + ": " + failure.message());
  auto writer = std::make_shared<trace::Writer>(folder, participant);
  if (restarts() > 0) writer->record(trace::Attempt{attempt(), restarts()});
  return writer;
}

}  // namespace lockstep::record
