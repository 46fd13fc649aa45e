#include <lockstep/base/error.h>
#include <lockstep/base/hash.h>
#include <lockstep/record/content.h>
#include <lockstep/record/readable.h>
#include <lockstep/record/summarize.h>

#include <fstream>

namespace lockstep::record {

at::Tensor plain_on_cpu(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const auto dense = tensor.layout() == at::kStrided ? tensor : tensor.to_dense();
  const auto numbers = dense.is_quantized() ? dense.int_repr() : dense;
  return numbers.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
}

Content hash_content(const at::Tensor& inputs, const at::Tensor& targets,
                     const std::vector<std::int64_t>& ids) {
  const auto count = static_cast<std::int64_t>(ids.size());
  const auto rows = [](const at::Tensor& tensor) { return tensor.dim() == 0 ? 0 : tensor.size(0); };
  if (inputs.dim() == 0 || targets.dim() == 0 || rows(inputs) != count || rows(targets) != count)
    throw UsageError("a data set of " + std::to_string(rows(inputs)) + " inputs and " +
                     std::to_string(rows(targets)) + " targets cannot have " +
                     std::to_string(count) + " ids: give one id for each row of both");
  const auto x = plain_on_cpu(inputs), y = plain_on_cpu(targets);
  const auto* x_bytes = static_cast<const char*>(x.const_data_ptr());
  const auto* y_bytes = static_cast<const char*>(y.const_data_ptr());
  const std::size_t x_row = count == 0 ? 0 : x.nbytes() / ids.size(),
                    y_row = count == 0 ? 0 : y.nbytes() / ids.size();
  Content content;
  content.ids_in_order = hash_bytes(ids.data(), ids.size() * sizeof(std::int64_t));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto id = hash_bytes(&ids[i], sizeof ids[i]);
    content.ids_as_set += id;
    content.content_as_set +=
        hash_bytes(y_bytes + i * y_row, y_row, hash_bytes(x_bytes + i * x_row, x_row, id));
  }
  return content;
}

std::vector<std::uint64_t> hash_rows(const at::Tensor& rows, std::size_t count) {
  const auto plain = plain_on_cpu(rows);
  if (plain.dim() == 0 || static_cast<std::size_t>(plain.size(0)) != count)
    throw UsageError("a tensor of shape [" + c10::Join(", ", plain.sizes()) + "] has not the " +
                     std::to_string(count) + " rows that were promised: give one for each id");
  const auto* bytes = static_cast<const char*>(plain.const_data_ptr());
  const std::size_t row = count == 0 ? 0 : plain.nbytes() / count;
  std::vector<std::uint64_t> hashes;
  for (std::size_t i = 0; i < count; ++i) hashes.push_back(hash_bytes(bytes + i * row, row));
  return hashes;
}

std::vector<std::uint64_t> hash_samples(const std::vector<at::Tensor>& tensors, bool may_wait) {
  constexpr std::int64_t kWidth = 256, kMostRows = std::int64_t{1} << 24;
  const at::NoGradGuard no_grad;
  std::vector<std::uint64_t> hashes;
  for (const auto& tensor : tensors) {
    if (!is_readable(tensor) || tensor.layout() != at::kStrided || tensor.dim() == 0 ||
        tensor.numel() == 0 || tensor.size(0) > kMostRows)
      continue;
    if (!tensor.is_cpu() && !may_wait) return {};
    const auto rows = static_cast<std::size_t>(tensor.size(0));
    if (!hashes.empty() && hashes.size() != rows) continue;
    hashes.resize(rows);
    const auto flat = without_repeats(tensor.detach(), 1).reshape({tensor.size(0), -1});
    const auto some = flat.size(1) > kWidth  // an odd stride, since images and tables have columns
                          ? flat.slice(1, 0, flat.size(1), (flat.size(1) / kWidth) | 1)
                          : flat;
    const auto of_this = hash_rows(some, rows);
    for (std::size_t i = 0; i < rows; ++i)
      hashes[i] = hash_bytes(&of_this[i], sizeof of_this[i], hashes[i]);
  }
  return hashes;
}

namespace {

std::uint64_t hash_tensor(const at::Tensor& tensor, std::uint64_t seed) {
  std::string shape(c10::getDtypeNames(tensor.scalar_type()).first);
  if (!tensor.is_nested())
    for (const auto size : tensor.sizes()) shape += " " + std::to_string(size);
  seed = hash_text(shape, seed);
  if (!is_readable(tensor)) return seed;
  const auto hash = hash_of(tensor);
  return hash_bytes(&hash, sizeof hash, seed);
}

std::uint64_t hash_into(const ValueOf<at::Tensor>& value, std::uint64_t seed,
                        std::set<std::string>* devices) {
  seed = hash_text(value.kind(), seed);
  if (value.is_bool() || value.is_int()) {
    const std::int64_t number = value.is_bool() ? value.as_bool() : value.as_int();
    return hash_bytes(&number, sizeof number, seed);
  }
  if (value.is_double()) {
    const double number = value.as_double();
    return hash_bytes(&number, sizeof number, seed);
  }
  if (value.is_string()) return hash_text(value.as_string(), seed);
  if (value.is_tensor()) {
    devices->insert(value.as_tensor().device().str());
    return hash_tensor(value.as_tensor(), seed);
  }
  if (value.is_dict()) {
    for (const auto& [key, item] : value.as_dict())
      seed = hash_into(item, hash_text(key.text(), seed), devices);
  } else if (value.is_list() || value.is_tuple()) {
    for (const auto& item : value.as_list()) seed = hash_into(item, seed, devices);
  }
  return seed;
}

}  // namespace

std::uint64_t hash_value(const ValueOf<at::Tensor>& value, std::set<std::string>* devices) {
  return hash_into(value, 0, devices);
}

std::uint64_t hash_place(const std::filesystem::path& file) {
  return hash_text(std::filesystem::weakly_canonical(file).string());
}

std::uint64_t hash_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return 0;
  std::vector<char> piece(std::size_t{1} << 20);
  std::uint64_t hash = 0;
  while (in) {
    in.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    hash = hash_bytes(piece.data(), static_cast<std::size_t>(in.gcount()), hash);
  }
  return in.eof() ? hash : 0;
}

}  // namespace lockstep::record
