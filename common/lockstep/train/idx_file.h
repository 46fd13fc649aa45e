// IDX files, the format of MNIST and its successors: a magic number that holds the element type and
// the number of dimensions, the dimensions (32 bits, big-endian), then the elements. Here: unsigned
// bytes, gzipped. Source: http://yann.lecun.com/exdb/mnist (the format's description at the end).
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace lockstep {

struct IdxData {
  std::int64_t count = 0;  // items in the file, of which values holds the first `items`
  std::int64_t items = 0;
  std::int64_t header_bytes = 0;     // where item 0 begins in the unpacked data
  std::vector<std::uint8_t> values;  // items x item_shape, row by row
};

// The first `limit` items (all of them: limit <= 0) of a file whose items have the shape
// `item_shape`: {28, 28} for images, {} for labels.
//
// Unpacks no more than it returns. A whole read also checks gzip's checksum and that nothing
// follows; a part cannot, since the checksum is that of the whole. Throws Error for a file that
// cannot be read or is damaged: its path, the offset in the unpacked data, what was expected and
// what was found.
IdxData read_idx(const std::filesystem::path& path, const std::vector<std::int64_t>& item_shape,
                 std::int64_t limit);

}  // namespace lockstep
