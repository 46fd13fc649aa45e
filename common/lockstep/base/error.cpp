#include <lockstep/base/error.h>

namespace lockstep {

CollectiveError::CollectiveError(int rank_, const std::string& operation_, std::int64_t sequence_,
                                 std::chrono::milliseconds timeout_, const std::string& cause)
    : Error("rank " + std::to_string(rank_) + ": collective " + operation_ + " number " +
            std::to_string(sequence_) + " failed (timeout " + std::to_string(timeout_.count()) +
            " ms): " + cause),
      rank(rank_),
      operation(operation_),
      sequence(sequence_),
      timeout(timeout_) {}

}  // namespace lockstep
