#include <lockstep/record/content.h>
#include <lockstep/record/fed_inputs.h>
#include <lockstep/record/readable.h>
#include <lockstep/record/settings.h>

#include <bit>
#include <utility>

namespace lockstep::record {

std::vector<std::int64_t> some_rows(const std::vector<at::Tensor>& inputs, bool may_wait) {
  constexpr std::size_t kOfAForward = 256;
  const auto hashes = hash_samples(inputs, may_wait);
  if (hashes.empty()) return {};
  const auto one_of = std::bit_ceil((hashes.size() + kOfAForward - 1) / kOfAForward);
  std::vector<std::int64_t> some;
  for (const auto hash : hashes)
    if ((hash >> 32U) % one_of == 0) some.push_back(static_cast<std::int64_t>(hash >> 32U));
  return some;
}

void FedInputs::record(trace::Writer& writer, std::int64_t module,
                       const std::vector<at::Tensor>& inputs, bool may_wait) {
  auto& looked_at = looked_at_[module];
  if (looked_at < trace::Rows::kMost)
    if (auto rows = some_rows(inputs, may_wait); !rows.empty()) {
      looked_at += rows.size();
      if (module == 0)
        writer.record(trace::Rows{std::move(rows)});
      else
        writer.record(trace::OtherRows{module, std::move(rows)});
    }
  if (!may_wait) return;
  const auto first = trace::Input::kOfAnother * module;
  for (std::size_t i = 0; i < inputs.size() && i < trace::Input::kOfAnother; ++i)
    if (is_readable(inputs[i]))
      writer.record(input_of(inputs[i], first + static_cast<std::int64_t>(i)));
}

}  // namespace lockstep::record
