#include <lockstep/base/error.h>

namespace lockstep {

namespace {

std::string words(int rank, const std::string& operation, std::int64_t sequence,
                  std::chrono::milliseconds timeout, const std::string& cause) {
  std::string text = "rank " + std::to_string(rank) + ": ";
  text += operation.empty() ? "a collective" : "collective " + operation;
  if (sequence > 0) text += " number " + std::to_string(sequence);
  text += " failed";
  if (timeout.count() > 0) text += " (timeout " + std::to_string(timeout.count()) + " ms)";
  return text + ": " + cause;
}

}  // namespace

CollectiveError::CollectiveError(int rank_, const std::string& operation_, std::int64_t sequence_,
                                 std::chrono::milliseconds timeout_, const std::string& cause)
    : Error(words(rank_, operation_, sequence_, timeout_, cause)),
      rank(rank_),
      operation(operation_),
      sequence(sequence_),
      timeout(timeout_) {}

}  // namespace lockstep
