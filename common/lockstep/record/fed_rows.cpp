#include <lockstep/record/content.h>
#include <lockstep/record/fed_rows.h>

#include <bit>
#include <utility>

namespace lockstep::record {

void FedRows::record(trace::Writer& writer, const std::vector<at::Tensor>& inputs, bool may_wait) {
  constexpr std::size_t kMost = 1 << 16, kOfAForward = 256;
  if (recorded_ >= kMost) return;
  const auto hashes = hash_samples(inputs, may_wait);
  if (hashes.empty()) return;
  const auto one_of = std::bit_ceil((hashes.size() + kOfAForward - 1) / kOfAForward);
  std::vector<std::int64_t> some;  // by their hashes, so that all ranks keep the same
  for (const auto hash : hashes)
    if (hash % one_of == 0) some.push_back(static_cast<std::int64_t>(hash >> 32U));
  recorded_ += some.size();
  writer.record(trace::Rows{std::move(some)});
}

}  // namespace lockstep::record
