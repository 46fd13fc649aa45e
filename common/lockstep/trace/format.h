// The file layout, as trace.md describes it. Private to the writer and the reader.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lockstep::trace {

inline constexpr std::array<char, 8> kMagic = {'L', 'K', 'S', 'T', 'R', 'A', 'C', 'E'};
inline constexpr std::uint32_t kVersion = 1;
inline constexpr const char* kLauncher = "launcher";  // a participant's kind
inline constexpr std::uint32_t kByteOrder =
    0x01020304;                                   // reads back as another on the other endianness
inline constexpr std::size_t kBoard = 64;         // collectives that can be in flight at once
inline constexpr std::size_t kHeaderSize = 4096;  // what is not used is 0

struct FileHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t byte_order;
  std::int32_t rank;
  std::int32_t world_size;
  std::array<char, 16> kind;  // of the participant, zero-padded
  std::int64_t pid;
  std::int64_t started_ns;  // monotonic
  std::int64_t started_unix_ns;
  std::atomic<std::uint64_t> length;  // bytes of the file that hold whole records, header included
  std::atomic<std::uint64_t> closed;  // 1 after the writer ended in order
  // The flight board: offsets of the records of collectives entered and not left; 0 = free.
  std::atomic<std::uint64_t> entered;
  std::atomic<std::uint64_t> left;
  std::array<std::atomic<std::uint64_t>, kBoard> in_flight;
  std::atomic<std::uint64_t> truncated;  // kNoRoom or kWentOn: later events are missing
};
static_assert(sizeof(FileHeader) <= kHeaderSize);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

inline constexpr std::uint64_t kNoRoom = 1, kWentOn = 2;

struct RecordHeader {
  std::uint32_t size;  // of the record, this header included, a multiple of 8
  std::uint16_t kind;  // index in Payload
  std::uint16_t zero;
  std::int64_t time_ns;
  std::int64_t step;
};
static_assert(sizeof(RecordHeader) == 24);
inline constexpr std::size_t kLargestRecord = std::size_t{1} << 28;  // bytes: 256 MiB

// Completed in place: a Collective's left_ns, which stands before its fields, and the first of those, failed.
inline constexpr std::size_t kLeftOffset = sizeof(RecordHeader);
inline constexpr std::size_t kFailedOffset = kLeftOffset + 8;

}  // namespace lockstep::trace
