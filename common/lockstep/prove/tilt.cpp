#include <ATen/ops/add.h>
#include <c10/core/GradMode.h>
#include <lockstep/prove/tilt.h>

#include <utility>

namespace lockstep::prove {
namespace {

constexpr std::int64_t kMostDetached = 1 << 26;  // numbers that are kept

}  // namespace

void Tilt::begin(std::int64_t number, const std::vector<std::vector<at::Tensor>>& parameters) {
  windows_.emplace_back();
  place_ = 0;
  for (const auto& probe : probes) {
    if (probe.at("first").as_int() != number) continue;
    until_ = number;
    for (const auto& [optimizer, directions] : probe.at("directions").as_dict()) {
      const auto& moved = parameters.at(static_cast<std::size_t>(optimizer.as_int()));
      for (std::size_t i = 0; i < moved.size(); ++i)
        prepared_.push_back(
            {moved[i], directions.as_list().at(i).as_tensor().to(moved[i].options()) * size});
    }
    if (!probe.at("calls").as_bool()) start();
  }
}

void Tilt::start() {
  if (prepared_.empty()) return;
  moved_ = std::exchange(prepared_, {});
  move();
}

void Tilt::move() {
  for (auto& each : moved_) {
    each.as_it_was = each.parameter.data().clone();  // the program may have changed it meanwhile
    each.parameter.data().add_(each.by);
  }
  is_moved_ = true;
}

void Tilt::put_back() {
  for (const auto& each : moved_) each.parameter.data().copy_(each.as_it_was);
  is_moved_ = false;
}

void Tilt::end(std::int64_t number) {
  if (number != until_) return;
  if (is_moved_) put_back();
  moved_.clear();
  prepared_.clear();
}

void Tilt::look_at_grad_mode() {
  if (moved_.empty()) return;
  if (!c10::GradMode::is_enabled() && is_moved_) put_back();
  if (c10::GradMode::is_enabled() && !is_moved_) move();
}

at::Tensor Tilt::detached(const at::Tensor& own) {
  if (!moved_.empty() || !prepared_.empty()) {
    const auto until = static_cast<std::size_t>(until_);
    const auto window = until < kept.size() ? kept[until].as_list() : Value::List{};
    const auto place = place_++;
    const bool is_known = place < window.size() && window[place].is_tensor() &&
                          window[place].as_tensor().sizes() == own.sizes();
    return is_known ? window[place].as_tensor().to(own.options()).clone() : own;
  }
  numbers_ += own.numel();
  if (!probes.empty()) return own;
  windows_.back().push_back(numbers_ < kMostDetached ? Value(own.cpu().clone()) : Value());
  return own;
}

}  // namespace lockstep::prove
