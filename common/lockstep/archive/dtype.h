// The element types of torch's tensors, under the names that files give them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep::archive {

enum class Dtype : std::uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBfloat16,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUint8,
  kBool,
  kComplex64,
  kComplex128,
  // These came after torch stopped giving each type a storage class of its own.
  kUint16,
  kUint32,
  kUint64,
  kFloat8E4m3fn,
  kFloat8E5m2,
  kFloat8E4m3fnuz,
  kFloat8E5m2fnuz,
  kLast = kFloat8E5m2fnuz
};

std::string_view name(Dtype dtype);  // Python's: "float32" of torch.float32
std::int64_t item_size(Dtype dtype);
std::string_view storage_class(Dtype dtype);  // "FloatStorage"; empty for the late ones

std::optional<Dtype> dtype_of_name(std::string_view name);
std::optional<Dtype> dtype_of_storage_class(std::string_view name);

}  // namespace lockstep::archive
