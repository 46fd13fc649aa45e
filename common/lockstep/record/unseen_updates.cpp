#include <lockstep/base/hash.h>
#include <lockstep/record/probes.h>
#include <lockstep/record/readable.h>
#include <lockstep/record/unseen_updates.h>

#include <algorithm>
#include <iterator>

namespace lockstep::record {
namespace {

std::uint64_t look_at(const at::Tensor& tensor) {
  constexpr std::int64_t kSome = 8;
  auto hash = static_cast<std::uint64_t>(tensor._version());
  if (!tensor.is_cpu() || tensor.layout() != at::kStrided || !tensor.is_contiguous()) return hash;
  const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
  const auto size = tensor.element_size();
  const auto some = std::min(kSome, tensor.numel());
  for (std::int64_t i = 0; i < some; ++i) {
    const auto place =
        static_cast<std::size_t>(some == 1 ? 0 : i * (tensor.numel() - 1) / (some - 1));
    hash = hash_bytes(bytes + place * size, size, hash);
  }
  return hash;
}

bool is_changed(const UnseenUpdates::Noted& each) {
  return look_at(each.parameter) != each.looks;
}

}  // namespace

void UnseenUpdates::note(const std::vector<at::Tensor>& parameters, bool keeps_values) {
  constexpr std::size_t kMost = 1 << 12;  // a program may make new ones in each step
  std::erase_if(noted_, [](const Noted& each) { return each.parameter.use_count() == 1; });
  const auto known = static_cast<std::ptrdiff_t>(noted_.size());
  for (const auto& parameter : parameters) {
    if (!is_readable(parameter)) continue;
    const auto is_it = [&](const Noted& each) { return each.parameter.is_same(parameter); };
    if (std::any_of(noted_.begin(), noted_.begin() + known, is_it)) continue;
    if (noted_.size() == kMost) return;
    noted_.push_back({.parameter = parameter,
                      .before = keeps_values ? summarize(parameter) : trace::Summary{},
                      .looks = look_at(parameter)});
  }
}

std::vector<UnseenUpdates::Noted> UnseenUpdates::changed() const {
  std::vector<Noted> changed;
  std::copy_if(noted_.begin(), noted_.end(), std::back_inserter(changed), is_changed);
  return changed;
}

bool UnseenUpdates::all_changed() const {
  return std::all_of(noted_.begin(), noted_.end(), is_changed);
}

}  // namespace lockstep::record
