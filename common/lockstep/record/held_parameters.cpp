#include <lockstep/record/held_parameters.h>
#include <lockstep/record/probes.h>
#include <lockstep/record/readable.h>
#include <lockstep/record/summarize.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace lockstep::record {

std::vector<trace::Summary> summarize_all(const std::vector<at::Tensor>& tensors) {
  std::vector<trace::Summary> values;
  values.reserve(tensors.size());
  for (const auto& tensor : tensors) values.push_back(summarize(tensor));
  return values;
}

void HeldParameters::record(trace::Writer& writer, const std::vector<at::Tensor>& parameters) {
  trace::Parameters now{summarize_all(parameters)};
  writer.record(now);
  last_.emplace(writer.step(), std::move(now.values));
}

namespace {

std::vector<std::uint64_t> hashes_of(const std::vector<at::Tensor>& parameters) {
  std::vector<std::uint64_t> hashes;
  for (const auto& parameter : parameters)
    hashes.push_back(is_readable(parameter) ? hash_of(parameter) : 0);
  return hashes;
}

// As large as a part of the parameters that is worth a mean of its own.
bool may_hold_parameters(const trace::Collective& call, const std::vector<at::Tensor>& parameters) {
  std::int64_t moved = 0, all = 0;
  for (const auto size : call.sizes) moved += size;
  bool is_one = false;
  for (const auto& parameter : parameters) {
    all += parameter.numel();
    is_one = is_one || parameter.numel() == moved;
  }
  return is_one || moved >= std::min(all, std::max<std::int64_t>(64, all / 100));
}

}  // namespace

bool HeldParameters::wanted_before(const trace::Collective& call, std::int64_t step,
                                   const std::vector<at::Tensor>& parameters) {
  constexpr std::uint64_t kAlways = 3;
  if (are_known(step) || !may_hold_parameters(call, parameters)) return false;
  auto kind = call.op;
  for (const auto size : call.sizes) kind += ' ' + std::to_string(size);
  const auto times = ++calls_[kind];
  return times <= kAlways || std::has_single_bit(times);
}

void HeldParameters::record_before_update(trace::Writer& writer,
                                          const std::vector<at::Tensor>& parameters) {
  if (!are_known(writer.step()) || std::exchange(told_, writer.step()) == writer.step()) return;
  const auto is_same = [](const trace::Summary& value, std::uint64_t hash) {
    return value.sketch.empty() || value.hash == hash;
  };
  trace::BeforeUpdate before{
      .changed = !std::ranges::equal(last_->second, hashes_of(parameters), is_same), .values = {}};
  if (before.changed) before.values = summarize_all(parameters);
  writer.record(before);
}

void HeldParameters::add_outside(const std::string& holder, const std::string& name,
                                 const at::Tensor& parameter) {
  if (!is_readable(parameter)) return;
  auto& known = outside_[holder];
  if (is_among(parameter, known.parameters)) return;
  known.names.push_back(name);
  known.parameters.push_back(weak_of(parameter));
}

void HeldParameters::remove_outside(const std::vector<at::Tensor>& parameters) {
  erase_outside([&](const at::Tensor& tensor) { return is_among(tensor, parameters); });
}

void HeldParameters::erase_outside(c10::function_ref<bool(const at::Tensor&)> goes) {
  for (auto& [holder, known] : outside_)
    for (std::size_t i = known.parameters.size(); i-- > 0;)
      if (const at::Tensor tensor(known.parameters[i].lock()); !tensor.defined() || goes(tensor)) {
        known.names.erase(known.names.begin() + static_cast<std::ptrdiff_t>(i));
        known.parameters.erase(known.parameters.begin() + static_cast<std::ptrdiff_t>(i));
      }
  std::erase_if(outside_, [](const auto& of_holder) { return of_holder.second.names.empty(); });
}

void HeldParameters::record_outside(trace::Writer& writer, const std::string& of) {
  erase_outside([](const at::Tensor&) { return false; });
  for (const auto& [holder, of_holder] : outside_)
    if (of.empty() || of == holder)
      writer.record(trace::OutsideParameters{holder, of_holder.names,
                                             summarize_all(alive(of_holder.parameters))});
}

std::vector<at::Tensor> alive(c10::ArrayRef<WeakTensor> tensors) {
  std::vector<at::Tensor> all;
  for (const auto& weak : tensors)
    if (at::Tensor tensor(weak.lock()); tensor.defined()) all.push_back(std::move(tensor));
  return all;
}

std::optional<std::size_t> place_of(const at::Tensor& tensor, c10::ArrayRef<at::Tensor> tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].is_same(tensor)) return i;
  return std::nullopt;
}

bool is_among(const at::Tensor& tensor, c10::ArrayRef<at::Tensor> tensors) {
  return place_of(tensor, tensors).has_value();
}

bool is_among(const at::Tensor& tensor, c10::ArrayRef<WeakTensor> tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const WeakTensor& each) {
    return each._unsafe_get_target() == tensor.unsafeGetTensorImpl();
  });
}

bool is_not_zero(const at::Tensor& gradient) {
  if (!is_readable(gradient)) return false;
  const auto values = gradient.is_sparse() ? gradient._values() : gradient;
  return values.count_nonzero().item<std::int64_t>() > 0;
}

}  // namespace lockstep::record
