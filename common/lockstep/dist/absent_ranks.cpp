#include <lockstep/dist/backends.h>

namespace lockstep::detail {

std::vector<int> absent_ranks(c10d::Store& store, int world_size,
                              const std::function<std::string(int rank)>& key_of) {
  std::vector<int> absent;
  for (int rank = 0; rank < world_size; ++rank)
    if (!store.check({key_of(rank)})) absent.push_back(rank);
  return absent;
}

std::string each_rank(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank);
  return text;
}

}  // namespace lockstep::detail
