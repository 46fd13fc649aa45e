#include <lockstep/lesson/batches.h>

#include <numeric>

namespace lockstep {

std::vector<std::int64_t> global_batch(std::int64_t step, std::int64_t size) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(size));
  std::iota(ids.begin(), ids.end(), step * size);
  return ids;
}

std::vector<std::int64_t> share_of(int rank, int world_size, const std::vector<std::int64_t>& ids) {
  std::vector<std::int64_t> mine;
  for (auto i = static_cast<std::size_t>(rank); i < ids.size();
       i += static_cast<std::size_t>(world_size))
    mine.push_back(ids[i]);
  return mine;
}

}  // namespace lockstep
