// Files of torch.save in memory, for the tests of what reads them.
#pragma once

#include <lockstep/archive/archive.h>
#include <lockstep/base/file.h>

#include <map>
#include <string>

#include "../support/refusal.h"

namespace lockstep::archive {

// A tensor of float32 [2, 3] in storage "0" of 24 bytes.
inline TensorInFile small_tensor() {
  return {{"0", "cpu", 24}, Dtype::kFloat32, 0, {2, 3}, {3, 1}, false, false};
}

// A value of every kind.
inline FileValue every_kind() {
  auto parameter = small_tensor();
  parameter.is_parameter = parameter.requires_grad = true;
  auto late_type = small_tensor();
  late_type.storage.key = "1";
  late_type.storage.bytes = 6;
  late_type.dtype = Dtype::kFloat8E5m2;
  return FileValue::Dict{
      {"none", {}},
      {"true", true},
      {"false", false},
      {"ints", FileValue::List{0, 255, 256, -1, 65536, INT32_MIN, std::int64_t{INT32_MAX} + 1,
                               INT64_MIN, INT64_MAX}},
      {"doubles", FileValue::List{0.0, -0.0, 0.1, 1e308, 5e-324}},
      {"text", "caf\xc3\xa9"},
      {"empty", FileValue::List{"", FileValue::List{}, FileValue::Tuple{}, FileValue::Dict{}}},
      {"tuple", FileValue::Tuple{{1, FileValue::Tuple{{2, 3}}, 4, 5}}},
      {7, FileValue::Dict{{-1, "minus one"}, {"7", "text"}}},
      {"tensor", small_tensor()},
      {"same memory", small_tensor()},
      {"parameter", parameter},
      {"late type", late_type}};
}

// A file with this pickle and these storages, as bytes.
inline std::string file_of(std::string_view pickle,
                           const std::map<std::string, std::string>& storages,
                           const std::string& folder = "archive/") {
  const TemporaryFolder place("lockstep-archive");
  NewFile file(place.path() / "x.pt", {.sync = false});
  ZipWriter zip(file);
  zip.add(folder + "data.pkl", pickle);
  for (const auto& [key, bytes] : storages) zip.add(folder + "data/" + key, bytes);
  zip.add(folder + "byteorder", "little");
  zip.finish();
  file.commit();
  return read_file(place.path() / "x.pt");
}

inline std::string every_kind_file() {
  return file_of(pickle(every_kind()), {{"0", "twenty-four bytes, yes.."}, {"1", "sixby."}});
}

}  // namespace lockstep::archive
