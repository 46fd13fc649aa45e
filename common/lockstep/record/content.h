// What a rank's data set holds, as hashes that can be compared between ranks.
#pragma once

#include <lockstep/base/value.h>
#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace lockstep::record {

struct Content {
  std::uint64_t ids_in_order = 0;    // of the list of ids
  std::uint64_t ids_as_set = 0;      // sum of the ids' hashes: the order does not matter
  std::uint64_t content_as_set = 0;  // sum over samples of hash(id, inputs, target)
};

// The tensor's numbers in index order, in CPU memory: the tensor itself where it is that already,
// else a copy.
at::Tensor plain_on_cpu(const at::Tensor& tensor);

// Row i of `inputs` and `targets` is sample ids[i]. CPU tensors; others are copied. Throws
// UsageError where the sizes do not match.
Content hash_content(const at::Tensor& inputs, const at::Tensor& targets,
                     const std::vector<std::int64_t>& ids);

// A hash of each of `count` rows. Throws UsageError where there are not as many.
std::vector<std::uint64_t> hash_rows(const at::Tensor& rows, std::size_t count);

// A hash of each sample: each row that the tensors hold together. Of more than 256 numbers in a row, of some; tensors of
// another number of rows than the first are left out. Empty where there is none, or where a tensor is on a device and
// may_wait is false.
std::vector<std::uint64_t> hash_samples(const std::vector<at::Tensor>& tensors, bool may_wait);

// A hash of everything in the value: its keys, numbers, texts, and its tensors' types, shapes and
// bytes, wherever they are; of those that are not readable, the type and shape. Adds the tensors' devices to `devices`.
std::uint64_t hash_value(const ValueOf<at::Tensor>& value, std::set<std::string>* devices);

// Of the place that a path names, however it is written.
std::uint64_t hash_place(const std::filesystem::path& file);

// A hash of a file's bytes, read a piece at a time; 0 where it is not there or cannot be read to its end.
std::uint64_t hash_file(const std::filesystem::path& file);

}  // namespace lockstep::record
