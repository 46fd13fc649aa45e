#include <lockstep/archive/dtype.h>

#include <array>

namespace lockstep::archive {
namespace {

struct Row {
  std::string_view name;
  std::int64_t size;
  std::string_view storage;
};
constexpr std::size_t kCount = static_cast<std::size_t>(Dtype::kLast) + 1;
// In the order of the enum.
constexpr std::array<Row, kCount> kRows = {{{"float64", 8, "DoubleStorage"},
                                            {"float32", 4, "FloatStorage"},
                                            {"float16", 2, "HalfStorage"},
                                            {"bfloat16", 2, "BFloat16Storage"},
                                            {"int64", 8, "LongStorage"},
                                            {"int32", 4, "IntStorage"},
                                            {"int16", 2, "ShortStorage"},
                                            {"int8", 1, "CharStorage"},
                                            {"uint8", 1, "ByteStorage"},
                                            {"bool", 1, "BoolStorage"},
                                            {"complex64", 8, "ComplexFloatStorage"},
                                            {"complex128", 16, "ComplexDoubleStorage"},
                                            {"uint16", 2, ""},
                                            {"uint32", 4, ""},
                                            {"uint64", 8, ""},
                                            {"float8_e4m3fn", 1, ""},
                                            {"float8_e5m2", 1, ""},
                                            {"float8_e4m3fnuz", 1, ""},
                                            {"float8_e5m2fnuz", 1, ""}}};
static_assert(!kRows.back().name.empty(), "a row for each type");

const Row& row(Dtype dtype) {
  return kRows[static_cast<std::size_t>(dtype)];
}

std::optional<Dtype> find(std::string_view text, std::string_view Row::*column) {
  for (std::size_t i = 0; i < kCount; ++i)
    if (!text.empty() && kRows[i].*column == text) return static_cast<Dtype>(i);
  return std::nullopt;
}

}  // namespace

std::string_view name(Dtype dtype) {
  return row(dtype).name;
}

std::int64_t item_size(Dtype dtype) {
  return row(dtype).size;
}

std::string_view storage_class(Dtype dtype) {
  return row(dtype).storage;
}

std::optional<Dtype> dtype_of_name(std::string_view text) {
  return find(text, &Row::name);
}

std::optional<Dtype> dtype_of_storage_class(std::string_view text) {
  return find(text, &Row::storage);
}

}  // namespace lockstep::archive
