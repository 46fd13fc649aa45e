#include <lockstep/base/error.h>
#include <lockstep/compare/compare.h>
#include <lockstep/trace/attempts.h>

namespace lockstep::compare {
namespace {

// What cannot be read is a wrong argument here: 3 says that two traces leave it open.
trace::Trace read(const std::filesystem::path& folder) {
  try {
    return trace::read_job(folder);
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

}  // namespace

Comparison compare_folders(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code none;
  if (std::filesystem::equivalent(a, b, none))
    throw UsageError(a.string() + " and " + b.string() + " are one folder; name two runs");
  const auto of_a = read(a), of_b = read(b);
  return compare(of_a, of_b);
}

}  // namespace lockstep::compare
