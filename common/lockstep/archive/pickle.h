// Python's pickle, as far as state dicts need it: protocol 2, plain values, and tensors whose bytes
// lie in records of their own. Sources: Python's Lib/pickletools.py; torch/serialization.py,
// torch/_utils.py and torch/_weights_only_unpickler.py.
#pragma once

#include <lockstep/archive/dtype.h>
#include <lockstep/base/value.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::archive {

// The memory behind one tensor or several, in the record data/<key>.
struct Storage {
  std::string key;
  std::string location;  // the device it was saved from: "cpu", "cuda:0"
  std::int64_t bytes = 0;
  bool operator==(const Storage&) const = default;
};

// A tensor as a file describes it: a view of a storage. Offset, sizes and strides count elements.
struct TensorInFile {
  Storage storage;
  Dtype dtype = Dtype::kFloat32;
  std::int64_t offset = 0;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  bool requires_grad = false;
  bool is_parameter = false;  // torch.nn.Parameter
  bool operator==(const TensorInFile&) const = default;
};

using FileValue = ValueOf<TensorInFile>;

// Containers within containers, both ways.
inline constexpr int kDeepest = 100;

// What torch.load(weights_only=True) reads. Throws Error for a value nested deeper than kDeepest
// and for text that is not UTF-8, which Python could not read.
std::string pickle(const FileValue& value);

// Reads what torch.save writes of state dicts, and refuses everything else by name: it knows the
// opcodes and the globals listed in unpickler.cpp and globals.cpp and calls nothing. OrderedDict
// and Counter become dicts, torch.Size a tuple. Throws Error with the offset in the pickle.
//
// What it returns is consistent: each tensor lies inside its storage, a storage has one size
// wherever it is named. It takes memory in proportion to the pickle's size, whatever that holds: a
// value referred to many times is copied only while that holds. What pickle() wrote always fits.
FileValue unpickle(std::string_view pickle);

}  // namespace lockstep::archive
