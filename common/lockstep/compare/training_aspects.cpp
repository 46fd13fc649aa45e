// What a step does beside its tensors: modes, losses, hyper-parameters.
#include <lockstep/base/text.h>
#include <lockstep/compare/aspects.h>
#include <lockstep/diagnose/tolerance.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>

namespace lockstep::compare {
namespace {

// In order; of two in a row that are equal, one. "train, eval"
std::string modes_text(const std::vector<const trace::Forward*>& forwards) {
  std::string text;
  const trace::Forward* before = nullptr;
  for (const auto* each : forwards) {
    if (before == nullptr || before->training != each->training)
      text += std::string(text.empty() ? "" : ", ") + (each->training ? "train" : "eval");
    before = each;
  }
  return text;
}

struct Totals {
  double backward = 0, sum = 0, count = 0;
  int backwards = 0;
  double mean() const { return count > 0 ? sum / count : 0; }
};

void add(const std::vector<const trace::Loss*>& losses, Totals& totals) {
  for (const auto* each : losses) {
    totals.backward += each->backward_value;
    totals.sum += each->sum;
    totals.count += static_cast<double>(each->count);
    ++totals.backwards;
  }
}

void compare_losses_of(const Pair& pair, std::int64_t step, int rank,
                       const std::vector<const trace::Loss*>& a,
                       const std::vector<const trace::Loss*>& b, Ledger& ledger) {
  const auto tolerance = diagnose::tolerance_of(diagnose::Quantity::loss, pair.unit, step);
  Totals of_a, of_b;
  add(a, of_a), add(b, of_b);
  ledger.numbers(step, rank, "samples of the loss", of_a.count, of_b.count, 0);
  ledger.numbers(step, rank, "mean loss of the samples", of_a.mean(), of_b.mean(), tolerance);
  ledger.numbers(step, rank, "loss that backward starts from", of_a.backward, of_b.backward,
                 tolerance);
}

// What backward() starts from, of a program that does not tell its samples' losses, in steps whose gradients were
// recorded: in others it would come before its cause. It may be a sum over a batch or a part of it, so only runs of as
// many ranks are compared.
void compare_backwards(const Pair& pair, Ledger& ledger) {
  const auto a = events_by_step<trace::Backward>(pair.a),
             b = events_by_step<trace::Backward>(pair.b);
  ledger.recorded(!a.empty(), !b.empty());
  const auto probed = events_by_step<trace::LocalGradients>(pair.a);
  const auto total = [](const std::vector<const trace::Backward*>& values) {
    double sum = 0;
    for (const auto* each : values) sum += each->value;
    return sum;
  };
  for (const auto& [step, in_a] : a) {
    const auto in_b = b.find(step);
    if (in_b == b.end() || step >= pair.updates() || probed.count(step) == 0) continue;
    for (std::size_t r = 0; r < pair.ranks(); ++r)
      if (!in_a[r].empty() && !in_b->second[r].empty())
        ledger.numbers(step, pair.rank(r), "loss that backward starts from", total(in_a[r]),
                       total(in_b->second[r]),
                       diagnose::tolerance_of(diagnose::Quantity::loss, pair.unit, step));
  }
}

// By step and rank: whether all that backward() started from was finite; nothing of a rank that did not call it.
using Finite = std::map<std::int64_t, std::vector<std::optional<bool>>>;

Finite finite_losses(const diagnose::Run& run) {
  Finite finite;
  const auto add = [&](std::int64_t step, std::size_t r, double value) {
    auto& there = finite[step];
    there.resize(run.ranks.size());
    there[r] = there[r].value_or(true) && std::isfinite(value);
  };
  const auto add_all = [&](const auto& steps, auto value_of) {
    for (const auto& [step, ranks] : steps)
      for (std::size_t r = 0; r < ranks.size(); ++r)
        for (const auto* event : ranks[r]) add(step, r, value_of(*event));
  };
  add_all(events_by_step<trace::Loss>(run), [](const auto& loss) { return loss.backward_value; });
  add_all(events_by_step<trace::Backward>(run), [](const auto& start) { return start.value; });
  return finite;
}

// In each step, and not only where gradients were recorded: NaN shows here first.
void compare_finite(const Pair& pair, Ledger& ledger) {
  const auto a = finite_losses(pair.a), b = finite_losses(pair.b);
  const auto text = [](bool finite) { return finite ? "finite" : "not finite"; };
  for (const auto& [step, in_a] : a) {
    const auto in_b = b.find(step);
    if (in_b == b.end() || step >= pair.updates()) continue;
    for (std::size_t r = 0; r < pair.ranks(); ++r)
      if (const auto& x = in_a[r], &y = in_b->second[r]; x && y && *x != *y)
        ledger.texts(step, pair.rank(r), "loss that backward starts from", text(*x), text(*y),
                     true);
  }
}

std::string rates_text(const std::vector<double>& rates) {
  std::string text;
  for (const auto rate : rates) text += (text.empty() ? "" : ", ") + number_text(rate);
  return text;
}

void compare_rates(std::int64_t step, int rank, const trace::Update& a, const trace::Update& b,
                   Ledger& ledger) {
  if (a.lr.size() != b.lr.size()) {
    ledger.texts(step, rank, "learning rates", rates_text(a.lr), rates_text(b.lr), true);
    return;
  }
  for (std::size_t i = 0; i < a.lr.size(); ++i)
    ledger.numbers(step, rank, "learning rate" + (i ? " of group " + std::to_string(i) : ""),
                   a.lr[i], b.lr[i], diagnose::kOfDoubles);
}

// A text as a number; nothing where it is none.
std::optional<double> number_of(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != 0) return std::nullopt;
  return value;
}

// What a class is called in both languages: "torch::optim::SGD" and "torch.optim.sgd.SGD" are SGD.
std::string last_name(const std::string& text) {
  const auto at = text.find_last_of(":.");
  return at == std::string::npos ? text : text.substr(at + 1);
}

bool same_option(const std::string& key, const std::string& a, const std::string& b) {
  const auto x = number_of(a), y = number_of(b);
  if (x && y) return *x == *y;
  const auto names_a_class = key.size() >= 9 && key.compare(key.size() - 9, 9, "optimizer") == 0;
  return names_a_class ? last_name(a) == last_name(b) : a == b;
}

void compare_options(std::int64_t step, int rank, const trace::Configuration& a,
                     const trace::Configuration& b, Ledger& ledger) {
  std::map<std::string, std::string> of_b;
  for (std::size_t i = 0; i < b.keys.size(); ++i) of_b[b.keys[i]] = b.values[i];
  for (std::size_t i = 0; i < a.keys.size(); ++i)
    if (const auto other = of_b.find(a.keys[i]); other != of_b.end())
      ledger.texts(step, rank, "option " + a.keys[i], a.values[i], other->second,
                   !same_option(a.keys[i], a.values[i], other->second));
}

}  // namespace

void compare_modes(const Pair& pair, Ledger& ledger) {
  const auto a = events_by_step<trace::Forward>(pair.a), b = events_by_step<trace::Forward>(pair.b);
  ledger.recorded(!a.empty(), !b.empty());
  for (const auto& [step, in_a] : a) {
    const auto in_b = b.find(step);
    if (in_b == b.end() || step >= pair.updates()) continue;
    for (std::size_t r = 0; r < pair.ranks(); ++r) {
      const auto of_a = modes_text(in_a[r]), of_b = modes_text(in_b->second[r]);
      if (!of_a.empty() && !of_b.empty())
        ledger.texts(step, pair.rank(r), "mode of the forwards", of_a, of_b, of_a != of_b);
    }
  }
}

void compare_losses(const Pair& pair, Ledger& ledger) {
  const auto a = events_by_step<trace::Loss>(pair.a), b = events_by_step<trace::Loss>(pair.b);
  ledger.recorded(!a.empty(), !b.empty());
  if (pair.same_ranks) {
    compare_backwards(pair, ledger);
    compare_finite(pair, ledger);
  }
  for (const auto& [step, in_a] : a) {
    const auto in_b = b.find(step);
    if (in_b == b.end()) {
      if (step < pair.updates()) ledger.only_in_a(step);
      continue;
    }
    if (pair.same_ranks) {
      for (std::size_t r = 0; r < in_a.size(); ++r)
        if (!in_a[r].empty() && !in_b->second[r].empty())
          compare_losses_of(pair, step, pair.a.numbers[r], in_a[r], in_b->second[r], ledger);
      continue;
    }
    Totals of_a, of_b;
    for (const auto& each : in_a) add(each, of_a);
    for (const auto& each : in_b->second) add(each, of_b);
    ledger.numbers(step, -1, "mean loss of the samples", of_a.mean(), of_b.mean(),
                   diagnose::tolerance_of(diagnose::Quantity::loss, pair.unit, step));
  }
  for (const auto& [step, in_b] : b)
    if (step < pair.updates() && a.count(step) == 0) ledger.only_in_b(step);
}

void compare_hyper_parameters(const Pair& pair, Ledger& ledger) {
  ledger.recorded(has<trace::Update>(pair.a), has<trace::Update>(pair.b));
  for_each_in_both<trace::Update>(pair,
                                  [&](std::int64_t step, int rank, const auto& a, const auto& b) {
                                    compare_rates(step, rank, a, b, ledger);
                                  });
  for_each_in_both<trace::Configuration>(
      pair, [&](std::int64_t step, int rank, const auto& a, const auto& b) {
        if (a.of == "optimizer" && b.of == "optimizer") compare_options(step, rank, a, b, ledger);
      });
  for_each_in_both<trace::Clip>(
      pair, [&](std::int64_t step, int rank, const auto& a, const auto& b) {
        ledger.numbers(step, rank, "norm to clip to", a.max_norm, b.max_norm, diagnose::kOfDoubles);
      });
  for_each_in_both<trace::ScaledStep>(
      pair, [&](std::int64_t step, int rank, const auto& a, const auto& b) {
        ledger.numbers(step, rank, "scale of the loss", a.scale, b.scale, 0);
      });
}

}  // namespace lockstep::compare
