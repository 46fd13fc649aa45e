#include <lockstep/base/hash.h>
#include <lockstep/record/content.h>
#include <lockstep/record/fed_rows.h>

#include <bit>
#include <utility>

namespace lockstep::record {
namespace {

// Of more than 256 numbers in a row, of some. Tensors of another number of rows than the first are left out.
std::vector<std::uint64_t> hash_rows_of(const std::vector<at::Tensor>& tensors, bool may_wait) {
  constexpr std::int64_t kWidth = 256;
  const at::NoGradGuard no_grad;
  std::vector<std::uint64_t> hashes;
  for (const auto& tensor : tensors) {
    if (!tensor.defined() || tensor.is_nested() || tensor.layout() != at::kStrided ||
        tensor.dim() == 0 || tensor.numel() == 0 || tensor.is_meta())
      continue;
    if (!tensor.is_cpu() && !may_wait) return {};
    const auto rows = static_cast<std::size_t>(tensor.size(0));
    if (!hashes.empty() && hashes.size() != rows) continue;
    hashes.resize(rows);
    const auto flat = tensor.detach().reshape({tensor.size(0), -1});
    const auto some = flat.size(1) > kWidth  // an odd stride, since images and tables have columns
                          ? flat.slice(1, 0, flat.size(1), (flat.size(1) / kWidth) | 1)
                          : flat;
    const auto of_this = hash_rows(some, rows);
    for (std::size_t i = 0; i < rows; ++i)
      hashes[i] = hash_bytes(&of_this[i], sizeof of_this[i], hashes[i]);
  }
  return hashes;
}

}  // namespace

void FedRows::record(trace::Writer& writer, const std::vector<at::Tensor>& inputs, bool may_wait) {
  constexpr std::size_t kMost = 1 << 16, kOfAForward = 256;
  if (recorded_ >= kMost) return;
  const auto hashes = hash_rows_of(inputs, may_wait);
  if (hashes.empty()) return;
  const auto one_of = std::bit_ceil((hashes.size() + kOfAForward - 1) / kOfAForward);
  std::vector<std::int64_t> some;  // by their hashes, so that all ranks keep the same
  for (const auto hash : hashes)
    if (hash % one_of == 0) some.push_back(static_cast<std::int64_t>(hash >> 32U));
  recorded_ += some.size();
  writer.record(trace::Rows{std::move(some)});
}

}  // namespace lockstep::record
