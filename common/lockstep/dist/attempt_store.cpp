#include <lockstep/base/error.h>
#include <lockstep/base/random_word.h>
#include <lockstep/dist/attempt_store.h>

#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

namespace lockstep::detail {
namespace {

constexpr std::chrono::milliseconds kPause{5};
constexpr const char* kList = "list";      // rank 0: the words of all ranks, in rank order
constexpr const char* kAgreed = "agreed";  // rank 0: the list that all have confirmed

std::string word_key(int rank) {
  return "word/" + std::to_string(rank);
}

std::string confirmed_key(int rank) {
  return "confirmed/" + std::to_string(rank);
}

// "" where there is none yet.
std::string value(c10d::Store& store, const std::string& key) {
  return store.check({key}) ? store.get_to_str(key) : "";
}

std::string list_of_words(c10d::Store& store, int world_size) {
  std::string list;
  for (int rank = 0; rank < world_size; ++rank) {
    const auto word = value(store, word_key(rank));
    if (word.empty()) return "";
    list += word + "\n";
  }
  return list;
}

std::vector<int> not_confirmed(c10d::Store& store, const std::string& list, int world_size) {
  std::vector<int> missing;
  for (int rank = 1; rank < world_size; ++rank)
    if (list.empty() || value(store, confirmed_key(rank)) != list) missing.push_back(rank);
  return missing;
}

// Whether the attempt is agreed on; else does what this rank can do for it.
bool step(c10d::Store& store, const Ranks& ranks, const std::string& word, std::string& list) {
  if (ranks.rank == 0) {
    const auto now = list_of_words(store, ranks.world_size);
    if (now.empty()) return false;
    if (now != list) store.set(kList, list = now);
    if (!not_confirmed(store, list, ranks.world_size).empty()) return false;
    store.set(kAgreed, list);
    return true;
  }
  const auto now = value(store, kList);
  if (now != list && now.find(word + "\n") != std::string::npos)
    store.set(confirmed_key(ranks.rank), list = now);
  return !list.empty() && value(store, kAgreed) == list;
}

[[noreturn]] void throw_absent(c10d::Store& store, const Ranks& ranks, const std::string& list) {
  const auto absent =
      ranks.rank == 0 ? not_confirmed(store, list, ranks.world_size) : std::vector<int>{0};
  throw std::runtime_error("no word in this attempt from: " + each_rank(absent));
}

}  // namespace

StorePtr part_of_this_attempt(const StorePtr& store, const Ranks& ranks,
                              std::chrono::milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  const auto rendezvous = c10::make_intrusive<c10d::PrefixStore>("lockstep/attempt", store);
  const auto word = random_word();
  rendezvous->set(word_key(ranks.rank), word);
  std::string list;
  while (!step(*rendezvous, ranks, word, list)) {
    if (std::chrono::steady_clock::now() >= until) throw_absent(*rendezvous, ranks, list);
    std::this_thread::sleep_for(kPause);
  }
  // Rank 0's word is of this attempt, and everybody's list begins with it.
  return c10::make_intrusive<c10d::PrefixStore>("lockstep/" + list.substr(0, list.find('\n')),
                                                store);
}

}  // namespace lockstep::detail
