#include <lockstep/base/clock.h>
#include <lockstep/base/file.h>
#include <lockstep/base/text.h>
#include <lockstep/dist/backends.h>
#include <lockstep/dist/collective_call.h>
#include <lockstep/record/roll_call.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <thread>
#include <utility>

namespace lockstep::record {
namespace {

using std::chrono::milliseconds;

// A rank that waits longer than this says so in the store; who asks there gives the others longer.
constexpr milliseconds kQuiet{200};
constexpr milliseconds kGrace{1000};
constexpr int kMostTag = (1 << 30) - 1;

// Equal for processes that share a loopback interface.
std::string network_of_this_process() {
  return read_file("/proc/sys/kernel/random/boot_id") + " " +
         std::filesystem::read_symlink("/proc/self/ns/net").string();
}

std::string key_of(const char* what, int rank) {
  return std::string(what) + "/" + std::to_string(rank);
}

// Whether all ranks share a loopback interface; every rank says and learns it. Throws
// UnavailableError with the ranks that say nothing.
bool on_one_machine(c10d::Store& store, int rank, int size, milliseconds timeout) {
  if (store.add(key_of("groups", rank), 1) != 1)
    throw UsageError("record::check on rank " + std::to_string(rank) +
                     ": its store has served another group; give each a PrefixStore of its own");
  const auto mine = network_of_this_process();
  store.set(key_of("network", rank), mine);
  std::vector<std::string> keys;
  for (int other = 0; other < size; ++other) keys.push_back(key_of("network", other));
  try {
    store.wait(keys, timeout);
  } catch (const std::exception& error) {
    const auto absent =
        detail::absent_ranks(store, size, [](int other) { return key_of("network", other); });
    throw UnavailableError("record::check on rank " + std::to_string(rank) + ": after " +
                           std::to_string(timeout.count()) + " ms " + ranks_text(absent) +
                           " had not called it: " + text_of(error));
  }
  return std::all_of(keys.begin(), keys.end(),
                     [&](const std::string& key) { return store.get_to_str(key) == mine; });
}

at::Tensor words_of(const Part& part) {
  auto words = at::empty({2}, at::kLong);
  words.data_ptr<std::int64_t>()[0] = static_cast<std::int64_t>(part.dtype);
  words.data_ptr<std::int64_t>()[1] = part.numel;
  return words;
}

Part part_of_words(const at::Tensor& words) {
  const auto* numbers = words.data_ptr<std::int64_t>();
  return {static_cast<at::ScalarType>(numbers[0]), numbers[1]};
}

// False: not yet. Throws what the work failed with.
bool done_within(c10d::Work& work, milliseconds time) {
  try {
    return work.wait(time);
  } catch (const std::exception&) {
    if (work.isCompleted() && !work.isSuccess()) throw;
    return work.isCompleted();
  }
}

std::string name_of(PeerCall::Side side) {
  return side == PeerCall::Side::send ? "send" : "recv";
}

// "recv from rank 0, tag 6"
std::string describe(const PeerCall& call) {
  return name_of(call.side) + (call.side == PeerCall::Side::send ? " to " : " from ") +
         (call.peer < 0 ? "any rank" : "rank " + std::to_string(call.peer)) + ", tag " +
         std::to_string(call.tag);
}

}  // namespace

RollCall::RollCall(StorePtr store, int rank, int size, milliseconds timeout)
    : store_(std::move(store)), rank_(rank), size_(size) {
  const bool loopback = on_one_machine(*store_, rank_, size_, timeout);
  helper_ = detail::make_gloo({.store = store_,
                               .ranks = {.rank = rank_, .world_size = size_},
                               .loopback = loopback,
                               .timeout = timeout});
}

void RollCall::meet(const std::string& operation, std::int64_t sequence, const Fingerprint& mine,
                    milliseconds timeout) {
  const Meeting meeting{operation, sequence, timeout};
  require_working(meeting);
  const auto text = mine.encode();
  auto head = at::empty({2}, at::kLong);
  head.data_ptr<std::int64_t>()[0] = static_cast<std::int64_t>(mine.hash(size_));
  head.data_ptr<std::int64_t>()[1] = static_cast<std::int64_t>(text.size());
  const auto heads = gather(head, meeting);
  std::vector<std::int64_t> hashes, lengths;
  for (int rank = 0; rank < size_; ++rank) {
    hashes.push_back(heads.data_ptr<std::int64_t>()[2 * rank]);
    lengths.push_back(heads.data_ptr<std::int64_t>()[2 * rank + 1]);
  }
  last_operation_ = operation;
  if (hashes[0] != 0 && std::count(hashes.begin(), hashes.end(), hashes[0]) == size_) return;
  const auto mismatch = mismatch_of(exchange(text, lengths, meeting));
  if (!mismatch) return;
  last_operation_ = "a mismatch";
  throw CollectiveMismatch(rank_, operation, sequence, timeout, mismatch->text, mismatch->ranks);
}

// Of all ranks, one after the other.
at::Tensor RollCall::gather(const at::Tensor& mine, const Meeting& meeting) {
  auto all = at::empty({size_ * mine.numel()}, mine.options());
  auto input = mine;
  c10d::AllgatherOptions options;
  options.timeout = meeting.timeout;
  try {
    const auto work = helper_->_allgather_base(all, input, options);
    const auto quiet = std::min(kQuiet, meeting.timeout);
    if (done_within(*work, quiet)) return all;
    post(meeting.sequence, meeting.operation);
    // Gloo's own timeout is that of each step of a ring.
    if (done_within(*work, std::max(meeting.timeout - quiet, milliseconds(1)))) return all;
  } catch (const std::exception& error) {
    not_met(meeting, meeting, text_of(error));
  }
  not_met(meeting, meeting, "timed out");
}

std::vector<Fingerprint> RollCall::exchange(const std::string& mine,
                                            const std::vector<std::int64_t>& lengths,
                                            const Meeting& meeting) {
  const auto most = *std::max_element(lengths.begin(), lengths.end());
  auto bytes = at::zeros({most}, at::kChar);
  std::memcpy(bytes.data_ptr(), mine.data(), mine.size());
  const auto texts = gather(bytes, meeting);
  std::vector<Fingerprint> all;
  const auto* text = static_cast<const char*>(texts.data_ptr());
  for (const auto length : lengths) {
    all.push_back(Fingerprint::decode({text, static_cast<std::size_t>(length)}));
    text += most;
  }
  return all;
}

void RollCall::post(std::int64_t sequence, const std::string& doing) {
  store_->set(key_of("status", rank_), std::to_string(sequence) + " " + doing);
}

RollCall::Status RollCall::status_of(int rank) {
  Status status;
  const auto key = key_of("status", rank);
  if (!store_->check({key})) return status;
  std::istringstream text(store_->get_to_str(key));
  text >> status.sequence >> std::ws;
  std::getline(text, status.doing);
  return status;
}

void RollCall::require_working(const Meeting& meeting) {
  const std::lock_guard lock(mutex_);
  if (!broken_.empty())
    throw CollectiveError(rank_, meeting.operation, meeting.sequence, meeting.timeout,
                          "this group cannot be used any more, since " + broken_);
}

void RollCall::end_of_meetings(const std::string& why) {
  const std::lock_guard lock(mutex_);
  broken_ = why;
}

template <class What>
void RollCall::not_met(const Meeting& meeting, const What& what, const std::string& reason) {
  Absence absence;
  try {
    absence = absence_of(what, reason);
  } catch (const std::exception& error) {
    absence.text = reason + "; nor does the store tell who is missing: " + text_of(error);
  }
  end_of_meetings("at " + meeting.operation + " number " + std::to_string(meeting.sequence) + " " +
                  absence.text);
  if (absence.ranks.empty())
    throw CollectiveError(rank_, meeting.operation, meeting.sequence, meeting.timeout,
                          absence.text);
  throw RanksMissing(rank_, meeting.operation, meeting.sequence, meeting.timeout, absence.text,
                     absence.ranks);
}

RollCall::Absence RollCall::absence_of(const Meeting& meeting, const std::string& reason) {
  Absence absent;
  std::string elsewhere;
  post(meeting.sequence, meeting.operation);
  for (const auto until = monotonic_ns() + std::chrono::nanoseconds(kGrace).count();;) {
    absent.ranks.clear();
    elsewhere.clear();
    for (int rank = 0; rank < size_; ++rank) {
      const auto status = status_of(rank);
      if (rank == rank_ || status.sequence == meeting.sequence) continue;
      absent.ranks.push_back(rank);
      if (status.sequence == 0 && !status.doing.empty())
        elsewhere += "; rank " + std::to_string(rank) + " waits in " + status.doing;
    }
    if (absent.ranks.empty() || monotonic_ns() > until) break;
    std::this_thread::sleep_for(milliseconds(20));
  }
  if (absent.ranks.empty()) {
    absent.text = "this rank came too late, or the connection of the ranks failed: " + reason;
    return absent;
  }
  // All ranks met in the one before.
  absent.text = ranks_text(absent.ranks) + (absent.ranks.size() == 1 ? " has" : " have") +
                " not arrived; last at " +
                (meeting.sequence == 1 ? "no collective of this group"
                                       : "sequence " + std::to_string(meeting.sequence - 1) + " (" +
                                             last_operation_ + ")") +
                elsewhere;
  return absent;
}

RollCall::Absence RollCall::absence_of(const PeerCall& mine, const std::string& reason) {
  post(0, describe(mine));
  std::this_thread::sleep_for(kGrace);
  Absence absent{{}, "this rank waits in " + describe(mine)};
  if (mine.peer < 0) {
    absent.text += ": " + reason;
    return absent;
  }
  absent.ranks = {mine.peer};
  absent.text += "; rank " + std::to_string(mine.peer);
  const auto peer = status_of(mine.peer);
  if (peer.doing.empty())
    absent.text += " waits in no operation of this group";
  else if (peer.sequence == 0)
    absent.text += " waits in " + peer.doing;
  else
    absent.text += " was last seen to wait at sequence " + std::to_string(peer.sequence) + " (" +
                   peer.doing + ")";
  absent.text += ": " + reason;
  return absent;
}

RollCall::Pending RollCall::begin(const PeerCall& mine) {
  if (mine.tag < 0 || mine.tag > kMostTag)
    throw UsageError("a checked send or recv needs a tag from 0 to " + std::to_string(kMostTag) +
                     ", and has " + std::to_string(mine.tag));
  require_working({name_of(mine.side), mine.sequence, milliseconds(0)});
  // Two tags for each: the sender's words, and the receiver's.
  const bool sends = mine.side == PeerCall::Side::send;
  const int my_tag = 2 * mine.tag + (sends ? 0 : 1), their_tag = 2 * mine.tag + (sends ? 1 : 0);
  Pending pending{mine, words_of(mine.part), words_of({}), nullptr, nullptr};
  Tensors out{pending.my_words}, in{pending.their_words};
  if (mine.peer < 0) {
    pending.received = helper_->recvAnysource(in, their_tag);
  } else {
    pending.received = helper_->recv(in, mine.peer, their_tag);
    pending.sent = helper_->send(out, mine.peer, my_tag);
  }
  return pending;
}

int RollCall::finish(Pending& pending, milliseconds timeout) {
  const auto& mine = pending.mine;
  const Meeting meeting{name_of(mine.side), mine.sequence, timeout};
  int peer = mine.peer;
  try {
    pending.received->wait(timeout);
    if (peer < 0) {
      peer = pending.received->sourceRank();
      Tensors out{pending.my_words};
      pending.sent = helper_->send(out, peer, 2 * mine.tag + 1);
    }
    pending.sent->wait(timeout);
  } catch (const std::exception& error) {
    not_met(meeting, mine, text_of(error));
  }
  const auto theirs = part_of_words(pending.their_words);
  if (theirs == mine.part) return peer;
  const bool sends = mine.side == PeerCall::Side::send;
  const int from = sends ? rank_ : peer, to = sends ? peer : rank_;
  const auto text = "rank " + std::to_string(from) + " sends " +
                    describe(sends ? mine.part : theirs) + " to rank " + std::to_string(to) +
                    ", which expects " + describe(sends ? theirs : mine.part) + " (tag " +
                    std::to_string(mine.tag) + ")";
  end_of_meetings(text);
  throw CollectiveMismatch(rank_, meeting.operation, meeting.sequence, timeout, text,
                           {std::min(from, to), std::max(from, to)});
}

}  // namespace lockstep::record
