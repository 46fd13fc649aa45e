#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/trace/codec.h>
#include <lockstep/trace/format.h>
#include <lockstep/trace/reader.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

namespace lockstep::trace {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& file, std::uint64_t offset,
                         const std::string& what) {
  throw Error(file.string() + ", offset " + std::to_string(offset) + ": " + what);
}

void check_head(const std::filesystem::path& file, const std::string& bytes,
                const FileHeader& head) {
  if (head.magic != kMagic) refuse(file, 0, "not a trace: it does not begin with LKSTRACE");
  if (head.byte_order != kByteOrder) refuse(file, 12, "written on a machine of another byte order");
  if (head.version != kVersion)
    refuse(file, 8,
           "trace version " + std::to_string(head.version) + "; this program reads version " +
               std::to_string(kVersion));
  if (head.world_size < 1 || head.rank < 0 || head.rank >= head.world_size)
    refuse(file, 16,
           "rank " + std::to_string(head.rank) + " of " + std::to_string(head.world_size));
  if (head.kind.back() != 0) refuse(file, 24, "the participant's kind has no end");
  const auto length = head.length.load();
  if (length < kHeaderSize || length > bytes.size())
    refuse(file, offsetof(FileHeader, length),
           "it says it holds " + std::to_string(length) +
               " bytes of records and head; the file has " + std::to_string(bytes.size()));
}

template <std::size_t... I>
Payload make(std::size_t kind, std::index_sequence<I...>) {
  Payload payload;
  ((kind == I ? void(payload.emplace<I>()) : void()), ...);
  return payload;
}

Event decode(const std::uint8_t* record, const RecordHeader& head) {
  Event event{head.time_ns, head.step,
              make(head.kind, std::make_index_sequence<std::variant_size_v<Payload>>{})};
  Decoder decoder(record + sizeof head, record + head.size);
  std::visit([&](auto& payload) { payload.visit(decoder); }, event.payload);
  if (decoder.remaining() >= 8)
    throw Error(std::to_string(decoder.remaining()) + " bytes after the last field");
  return event;
}

}  // namespace

ParticipantTrace read_file(const std::filesystem::path& file) {
  const std::string bytes = lockstep::read_file(file);
  if (bytes.size() < kHeaderSize)
    refuse(file, bytes.size(),
           "ends inside the head, which takes " + std::to_string(kHeaderSize) + " bytes");
  FileHeader head;
  std::memcpy(static_cast<void*>(&head), bytes.data(), sizeof head);
  check_head(file, bytes, head);
  ParticipantTrace trace;
  trace.participant = {head.rank, head.world_size, head.kind.data()};
  trace.closed = head.closed.load() == 1;
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  const auto length = head.length.load();
  for (std::uint64_t offset = kHeaderSize; offset < length;) {
    RecordHeader record{};
    if (length - offset < sizeof record) refuse(file, offset, "ends inside a record's head");
    std::memcpy(&record, data + offset, sizeof record);
    if (record.size < sizeof record || record.size % 8 != 0 || record.size > length - offset)
      refuse(file, offset,
             "a record of " + std::to_string(record.size) + " bytes with " +
                 std::to_string(length - offset) + " left");
    if (record.kind >= std::variant_size_v<Payload>)
      refuse(file, offset, "an event of unknown kind " + std::to_string(record.kind));
    try {
      trace.events.push_back(decode(data + offset, record));
    } catch (const Error& error) {
      refuse(file, offset, error.what());
    }
    offset += record.size;
  }
  return trace;
}

Trace read(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder))
    throw Error(folder.string() + " is not a folder of traces");
  Trace trace;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    if (name.rfind("rank_", 0) == 0 && entry.path().extension() == ".trace")
      trace.ranks.push_back(read_file(entry.path()));
  }
  if (trace.ranks.empty()) throw Error(folder.string() + " holds no trace (rank_<number>.trace)");
  std::sort(trace.ranks.begin(), trace.ranks.end(),
            [](const auto& a, const auto& b) { return a.participant.rank < b.participant.rank; });
  trace.world_size = trace.ranks.front().participant.world_size;
  for (std::size_t i = 0; i < trace.ranks.size(); ++i) {
    const auto& participant = trace.ranks[i].participant;
    if (participant.world_size != trace.world_size)
      throw Error(folder.string() + " holds traces of different jobs: world sizes " +
                  std::to_string(trace.world_size) + " and " +
                  std::to_string(participant.world_size));
    if (i > 0 && participant.rank == trace.ranks[i - 1].participant.rank)
      throw Error(folder.string() + " holds two traces of rank " +
                  std::to_string(participant.rank));
  }
  return trace;
}

}  // namespace lockstep::trace
