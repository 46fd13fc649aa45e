#include <lockstep/dist/backends.h>
#include <lockstep/dist/collective_call.h>

#include <stdexcept>

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

void meet(c10d::Store& store, int rank, int world_size, std::chrono::milliseconds timeout,
          const std::string& advice) {
  const auto key_of = [](int each) { return "came/" + std::to_string(each); };
  std::vector<std::string> keys;
  for (int each = 0; each < world_size; ++each) keys.push_back(key_of(each));
  store.set(key_of(rank), std::string("1"));
  try {
    store.wait(keys, timeout);
  } catch (const std::exception& error) {
    throw std::runtime_error("not there: " + each_rank(absent_ranks(store, world_size, key_of)) +
                             ". " + advice + text_of(error));
  }
}

}  // namespace lockstep::detail
