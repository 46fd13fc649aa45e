#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/trace/clocks.h>
#include <lockstep/trace/codec.h>
#include <lockstep/trace/format.h>
#include <lockstep/trace/old_configuration.h>
#include <lockstep/trace/reader.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <system_error>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace lockstep::trace {
namespace {

constexpr std::int32_t kMostRanks = 1 << 20;  // what follows asks for memory for each

[[noreturn]] void refuse(const std::filesystem::path& file, std::uint64_t offset,
                         const std::string& what) {
  throw Error(file.string() + ", offset " + std::to_string(offset) + ": " + what);
}

// The head, from the file's first bytes; `size` is the whole file's.
void load_head(const std::filesystem::path& file, const std::string& bytes, std::uint64_t size,
               FileHeader& head) {
  if (bytes.size() < kHeaderSize)
    refuse(file, bytes.size(),
           "ends inside the head, which takes " + std::to_string(kHeaderSize) + " bytes");
  std::memcpy(static_cast<void*>(&head), bytes.data(), sizeof head);
  if (head.magic != kMagic) refuse(file, 0, "not a trace: it does not begin with LKSTRACE");
  if (head.byte_order != kByteOrder) refuse(file, 12, "written on a machine of another byte order");
  if (head.version != kVersion)
    refuse(file, 8,
           "trace version " + std::to_string(head.version) + "; this program reads version " +
               std::to_string(kVersion));
  if (head.world_size < 1 || head.world_size > kMostRanks || head.rank < 0 ||
      head.rank >= head.world_size)
    refuse(file, 16,
           "rank " + std::to_string(head.rank) + " of " + std::to_string(head.world_size));
  if (head.kind.back() != 0) refuse(file, 24, "the participant's kind has no end");
  const auto length = head.length.load();
  if (length < kHeaderSize || length > size)
    refuse(file, offsetof(FileHeader, length),
           "it says it holds " + std::to_string(length) +
               " bytes of records and head; the file has " + std::to_string(size) +
               (length > size ? ": it was cut off. Copy it again, or remove it: the other ranks' "
                                "traces can be read without it"
                              : ""));
}

template <class T>
SharedPayload decode_as(Decoder& decoder) {
  T value;
  value.visit(decoder);
  return value;
}

template <std::size_t... I>
SharedPayload decode_kind(std::size_t kind, Decoder& decoder, std::index_sequence<I...>) {
  constexpr std::array kinds{&decode_as<std::variant_alternative_t<I, Payload>>...};
  return kinds.at(kind)(decoder);
}

SharedPayload decode(std::size_t kind, std::string_view fields, Ids& last) {
  const auto* begin = reinterpret_cast<const std::uint8_t*>(fields.data());
  Decoder decoder(begin, begin + fields.size(), last);
  auto payload =
      decode_kind(kind, decoder, std::make_index_sequence<std::variant_size_v<Payload>>{});
  if (decoder.remaining() >= 8)
    throw Error(std::to_string(decoder.remaining()) + " bytes after the last field");
  return typed(std::move(payload));
}

// What one rank's events say, by their bytes, for the other ranks' events to share.
class Known {
 public:
  // Points into the file's bytes from then on.
  void keep(std::size_t kind, std::string_view fields, const SharedPayload& payload) {
    by_bytes_.at(kind).try_emplace(fields, payload);
  }
  // None where no event said this.
  SharedPayload find(std::size_t kind, std::string_view fields) const {
    const auto& of_kind = by_bytes_.at(kind);
    const auto found = of_kind.find(fields);
    return found == of_kind.end() ? SharedPayload() : found->second;
  }

 private:
  std::array<std::unordered_map<std::string_view, SharedPayload>, std::variant_size_v<Payload>>
      by_bytes_;
};

// The record's head at `record`, which stands at `offset` of the file with `left` bytes from there.
RecordHeader record_head(const std::filesystem::path& file, std::uint64_t offset,
                         const std::uint8_t* record, std::uint64_t left) {
  RecordHeader head{};
  if (left < sizeof head) refuse(file, offset, "ends inside a record's head");
  std::memcpy(&head, record, sizeof head);
  if (head.size < sizeof head || head.size % 8 != 0 || head.size > left ||
      head.size > kLargestRecord)
    refuse(file, offset,
           "a record of " + std::to_string(head.size) + " bytes with " + std::to_string(left) +
               " left");
  if (head.kind >= std::variant_size_v<Payload> || head.zero != 0)
    refuse(file, offset, "an event of unknown kind " + std::to_string(head.kind));
  if (head.step < -1 || head.step > kMostSteps)
    refuse(file, offset,
           "step " + std::to_string(head.step) + ", which is none from -1 to " +
               std::to_string(kMostSteps));
  return head;
}

// The bytes of an event's fields.
std::string_view fields_of(const std::uint8_t* record, const RecordHeader& head) {
  const std::size_t begin = head.kind == kind_of<Collective>() ? kFailedOffset : sizeof head;
  if (head.size < begin) throw Error("a collective that ends before its fields");
  return {reinterpret_cast<const char*>(record) + begin, head.size - begin};
}

// `known`: what an event of another rank said, if anything.
Event decode_at(const std::filesystem::path& file, std::uint64_t offset, const std::uint8_t* record,
                const RecordHeader& head, const Known& known, Ids& last) {
  Event event(head.time_ns, head.step, {});
  try {
    const auto fields = fields_of(record, head);
    if (event.payload = known.find(head.kind, fields); !event.payload)
      event.payload = decode(head.kind, fields, last);
    if (event.is<Collective>())
      std::memcpy(&event.left_ns, record + kLeftOffset, sizeof event.left_ns);
    for (const auto ns : {event.time_ns, event.left_ns})
      if (ns < 0 || ns > kMostTime)
        throw Error("the time " + std::to_string(ns) + " ns, which no clock shows");
  } catch (const Error& error) {
    refuse(file, offset, error.what());
  }
  return event;
}

// The part of a trace's file that is whole, and how many records it has.
struct Whole {
  std::string bytes;
  std::size_t records = 0;
};

// Of a file that only claims to be long, no more is read than it has records.
Whole whole_part(const std::filesystem::path& path) {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 24;
  const InputFile file(path);
  Whole whole{file.read(0, kHeaderSize)};
  auto& bytes = whole.bytes;
  FileHeader head;
  load_head(path, bytes, file.size(), head);
  const auto length = head.length.load();
  const auto hold = [&](std::uint64_t end) {
    if (end <= bytes.size()) return;
    const auto until = std::min(length, std::max(end, bytes.size() + kPiece));
    bytes += file.read(bytes.size(), until - bytes.size());
    if (bytes.size() < end) refuse(path, bytes.size(), "it was cut off while it was read");
  };
  for (std::uint64_t offset = kHeaderSize; offset < length; ++whole.records) {
    hold(std::min(length, offset + sizeof(RecordHeader)));
    const auto* record = reinterpret_cast<const std::uint8_t*>(bytes.data()) + offset;
    offset += record_head(path, offset, record, length - offset).size;
    hold(offset);
  }
  return whole;
}

// Shares what `known` has. `keep`, if not null, keeps what is new, by its place in `whole`.
ParticipantTrace parse(const std::filesystem::path& file, const Whole& whole, const Known& known,
                       Known* keep) {
  const auto& bytes = whole.bytes;
  FileHeader head;
  std::memcpy(static_cast<void*>(&head), bytes.data(), sizeof head);
  ParticipantTrace trace;
  trace.participant = {head.rank, head.world_size, head.kind.data()};
  trace.closed = head.closed.load() == 1;
  trace.pid = head.pid;
  trace.started_ns = head.started_ns;
  trace.started_unix_ns = head.started_unix_ns;
  trace.truncated = head.truncated.load() != 0;
  trace.had_no_room = head.truncated.load() == kNoRoom;
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  const std::uint64_t length = head.length.load();
  trace.events.reserve(whole.records);
  Ids last;
  for (std::uint64_t offset = kHeaderSize; offset < length;) {
    const auto record = record_head(file, offset, data + offset, length - offset);
    trace.events.push_back(decode_at(file, offset, data + offset, record, known, last));
    if (keep)
      keep->keep(record.kind, fields_of(data + offset, record), trace.events.back().payload);
    offset += record.size;
  }
  return trace;
}

// Somebody who names a folder above those of several runs, as --trace makes them, means one of these.
std::string no_trace_text(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  constexpr int kDeepest = 3;
  constexpr std::size_t kNamed = 5;
  std::set<fs::path> runs;
  std::error_code none;  // what cannot be looked into is passed over
  fs::recursive_directory_iterator it(folder, fs::directory_options::skip_permission_denied, none);
  for (const fs::recursive_directory_iterator end; it != end; it.increment(none)) {
    if (it.depth() >= kDeepest) it.disable_recursion_pending();
    if (is_of_a_rank(it->path())) runs.insert(it->path().parent_path());
  }
  std::string text = folder.string() + " holds no trace (rank_<number>.trace)";
  if (!runs.empty()) text += "; name a folder below it that does:";
  std::size_t named = 0;
  for (const auto& run : runs)
    if (named++ < kNamed) text += "\n  " + run.string();
  if (runs.size() > kNamed) text += "\n  and " + std::to_string(runs.size() - kNamed) + " more";
  return text;
}

}  // namespace

ParticipantTrace read_file(const std::filesystem::path& file) {
  return parse(file, whole_part(file), {}, nullptr);
}

FlightBoard read_flight_board(const std::filesystem::path& file) {
  const InputFile in(file);
  const auto first = in.read(0, kHeaderSize);
  // Asked after the head was read: a running writer's file grows before its records do.
  const auto size = in.size();
  FileHeader head;
  load_head(file, first, size, head);
  FlightBoard board{{head.rank, head.world_size, head.kind.data()},
                    head.pid,
                    head.closed.load() == 1,
                    head.entered.load(),
                    head.left.load(),
                    {},
                    head.truncated.load() != 0};
  for (const auto& place : head.in_flight) {
    const auto offset = place.load();
    if (offset == 0) continue;
    if (offset < kHeaderSize || offset >= size)
      refuse(file, offset, "a collective is said to stand here, outside of the records");
    const auto left = size - offset;
    auto bytes = in.read(offset, std::min<std::uint64_t>(left, sizeof(RecordHeader)));
    const auto data = [&] { return reinterpret_cast<const std::uint8_t*>(bytes.data()); };
    const auto record = record_head(file, offset, data(), left);
    bytes = in.read(offset, record.size);
    if (bytes.size() < record.size) refuse(file, offset, "ends inside a record");
    Ids none;
    auto event = decode_at(file, offset, data(), record, {}, none);
    if (!event.is<Collective>()) refuse(file, offset, "a collective should stand here");
    if (event.left_ns == 0) board.in_flight.push_back(std::move(event));
  }
  std::sort(board.in_flight.begin(), board.in_flight.end(),
            [](const Event& a, const Event& b) { return a.time_ns < b.time_ns; });
  return board;
}

namespace {

struct Named {
  std::filesystem::path file;
  ParticipantTrace trace;
};

bool joined(const ParticipantTrace& trace) {
  return std::any_of(trace.events.begin(), trace.events.end(), [](const Event& event) {
    return event.is<Group>() || event.is<Collective>();
  });
}

// A process that a rank starts inherits the rank's number, and may train something, too. The rank is the one that joined
// the job's groups; where none did, the first.
ParticipantTrace of_the_rank(int number, std::vector<Named>& files) {
  const auto claim = [](const Named& one) {
    return std::pair(joined(one.trace), !one.file.stem().has_extension());
  };
  std::stable_sort(files.begin(), files.end(),
                   [&](const auto& a, const auto& b) { return claim(a) > claim(b); });
  if (files.size() > 1 && claim(files[0]) == claim(files[1]))
    throw Error("there are two traces of rank " + std::to_string(number) + ": " +
                files[0].file.string() + " and " + files[1].file.string() +
                "; remove the one that is of another run");
  return std::move(files.front().trace);
}

// Whether the rank trained on after it was told to end: longer than an order takes to come to it, and than the step that
// was under way.
bool went_on(const std::vector<ParticipantTrace>& ranks, const RankEnd& told) {
  constexpr std::int64_t kOrder = 1'000'000'000;
  const auto rank = std::find_if(ranks.begin(), ranks.end(), [&](const auto& one) {
    return one.participant.rank == told.rank;
  });
  if (rank == ranks.end()) return false;
  std::int64_t step = -1;
  return std::any_of(rank->events.begin(), rank->events.end(), [&](const Event& event) {
    if (event.time_ns > told.ended_ns + kOrder) return event.step > step + 1;
    step = std::max<std::int64_t>(step, event.step);
    return false;
  });
}

}  // namespace

bool has_joined(const std::filesystem::path& folder, int rank) {
  const auto begin = "rank_" + std::to_string(rank) + ".";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto& file = entry.path();
    if (is_of_a_rank(file) && file.filename().string().starts_with(begin) &&
        joined(read_file(file)))
      return true;
  }
  return false;
}

Trace read(const std::filesystem::path& folder) {
  std::error_code error;
  const std::filesystem::directory_iterator entries(folder, error);
  if (error == std::errc::no_such_file_or_directory)
    throw Error("there is no folder " + folder.string() +
                ". `lockstep watch --into` names it; or LOCKSTEP_TRACE, for a C++ job that is "
                "linked with lockstep::record");
  if (error) throw Error("cannot read the folder " + folder.string() + ": " + error.message());
  Trace trace;
  Whole first;  // read, whichever it is: what `known` points into
  Known known;
  std::map<int, std::vector<Named>> ranks;
  for (const auto& entry : entries) {
    const auto& file = entry.path();
    if (!is_of_a_rank(file)) continue;
    auto whole = whole_part(file);
    const bool is_first = first.bytes.empty();
    if (is_first) first = std::move(whole);
    auto one = parse(file, is_first ? first : whole, known, is_first ? &known : nullptr);
    one.runs = !one.closed && is_being_written(file);
    if (file.stem().has_extension() && one.participant.world_size == 1)
      trace.alone.push_back(std::move(one));
    else
      ranks[one.participant.rank].push_back({file, std::move(one)});
  }
  if (ranks.empty()) throw Error(no_trace_text(folder));
  trace.world_size = ranks.begin()->second.front().trace.participant.world_size;
  for (auto& [number, files] : ranks) {
    for (const auto& one : files)
      if (one.trace.participant.world_size != trace.world_size)
        throw Error(folder.string() + " holds traces of different jobs: world sizes " +
                    std::to_string(trace.world_size) + " and " +
                    std::to_string(one.trace.participant.world_size));
    trace.ranks.push_back(of_the_rank(number, files));
  }
  to_one_clock(trace.ranks);
  for (auto& other : trace.alone) to_clock_of(trace.ranks.front(), other);
  std::sort(trace.alone.begin(), trace.alone.end(), [](const auto& a, const auto& b) {
    return std::tie(a.started_ns, a.pid) < std::tie(b.started_ns, b.pid);
  });
  std::map<std::int64_t, RankEnd> ends;
  const auto take = [&](const ParticipantTrace& of) {
    for (const auto& at : of.all<RankEnd>()) {
      auto end = *at.event;
      end.ended_ns = moved(end.ended_ns, 0);
      if (end.how == "stopped" && went_on(trace.ranks, end)) end.ended_ns = at.time_ns;
      auto& known = ends.try_emplace(end.rank, end).first->second;
      // What a rank says after it was told to end comes of that.
      const bool was_told = known.how == "stopped" || known.how == "deadline";
      if (!was_told || end.ended_ns <= known.ended_ns) known = std::move(end);
    }
  };
  if (const auto launcher = launcher_file(folder);
      std::filesystem::exists(std::filesystem::symlink_status(launcher, error))) {
    auto of_launcher = read_file(launcher);
    to_clock_of(trace.ranks.front(), of_launcher);
    take(of_launcher);
  }
  for (const auto& rank : trace.ranks) take(rank);
  for (const auto& [rank, end] : ends) trace.ends.push_back(end);
  return trace;
}

}  // namespace lockstep::trace
