// What a step does beside its tensors: modes, losses, clipping, rates.
#include <lockstep/compare/looks.h>

#include <cmath>
#include <map>

namespace lockstep::compare {
namespace {

using diagnose::Quantity;

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
  double sum = 0, count = 0;

  explicit Totals(const std::vector<const trace::Loss*>& losses) { add(losses); }
  explicit Totals(const Events<trace::Loss>& ranks) {
    for (const auto& losses : ranks) add(losses);
  }
  double mean() const { return count > 0 ? sum / count : 0; }

 private:
  void add(const std::vector<const trace::Loss*>& losses) {
    for (const auto* each : losses) sum += each->sum, count += static_cast<double>(each->count);
  }
};

constexpr const char* kStart = "loss that backward starts from";

// What a rank's backward() started from in a step, over all its calls.
struct Start {
  double sum = 0;
  bool finite = true;
  bool told = false;  // with the samples' losses
};
using Starts = std::map<std::int64_t, std::vector<std::optional<Start>>>;  // by step and rank

Starts starts_of(const diagnose::Run& run) {
  Starts starts;
  const auto add = [&](const auto& steps, bool told, auto value_of) {
    for (const auto& [step, ranks] : steps)
      for (std::size_t r = 0; r < ranks.size(); ++r)
        for (const auto* event : ranks[r]) {
          auto& there = starts[step];
          there.resize(run.ranks.size());
          auto& start = there[r] ? *there[r] : there[r].emplace();
          start.sum += value_of(*event);
          start.finite = start.finite && std::isfinite(value_of(*event));
          start.told = told;
        }
  };
  add(events_by_step<trace::Loss>(run), true, [](const auto& loss) { return loss.backward_value; });
  add(events_by_step<trace::Backward>(run), false, [](const auto& start) { return start.value; });
  return starts;
}

// Only of as many ranks: it may be a sum over a batch, or a part of it. Of a program that does not tell its samples' losses,
// values are compared in steps whose gradients were recorded: in others they would come before their cause. Whether they are
// finite is compared in all: NaN shows here first.
void compare_starts(const Pair& pair, Seen& seen) {
  const auto a = starts_of(pair.a), b = starts_of(pair.b);
  const auto probed = events_by_step<trace::LocalGradients>(pair.a);
  const auto text = [](const Start& start) { return start.finite ? "finite" : "not finite"; };
  for (const auto& [step, in_a] : a) {
    const auto in_b = b.find(step);
    if (in_b == b.end() || step >= pair.updates()) continue;
    for (std::size_t r = 0; r < pair.ranks(); ++r) {
      const auto &x = in_a[r], &y = in_b->second[r];
      if (!x || !y) continue;
      if (x->finite != y->finite)
        seen.texts({step, pair.rank(r)}, kStart, text(*x), text(*y));
      else if (x->told == y->told && (x->told || probed.count(step) > 0))
        seen.numbers({step, pair.rank(r)}, kStart, x->sum, y->sum,
                     pair.tolerance(Quantity::loss, step));
    }
  }
}

std::string rates_text(const std::vector<double>& rates) {
  std::string text;
  for (const auto rate : rates) text += (text.empty() ? "" : ", ") + number_text(rate);
  return text;
}

}  // namespace

void compare_modes(const Pair& pair, Seen& seen) {
  for_each_rank<trace::Forward>(pair, [&](At at, const auto& a, const auto& b) {
    if (at.step < pair.updates())
      seen.texts(at, "mode of the forwards", modes_text(a), modes_text(b));
  });
}

void compare_losses(const Pair& pair, Seen& seen) {
  const auto mean = [&](At at, const Totals& a, const Totals& b) {
    seen.numbers(at, "mean loss of the samples", a.mean(), b.mean(),
                 pair.tolerance(Quantity::loss, at.step));
  };
  seen.lonely<trace::Loss>(pair);
  for_each_in_both<trace::ScaledStep>(pair, [&](At at, const auto& a, const auto& b) {
    seen.numbers(at, "scale of the loss", a.scale, b.scale, 0);
  });
  if (!pair.same_ranks) {
    for_each_step<trace::Loss>(pair, [&](std::int64_t step, const auto& a, const auto& b) {
      mean({step, -1}, Totals(a), Totals(b));
    });
    return;
  }
  for_each_rank<trace::Loss>(pair, [&](At at, const auto& in_a, const auto& in_b) {
    const Totals a(in_a), b(in_b);
    seen.numbers(at, "samples of the loss", a.count, b.count, 0);
    mean(at, a, b);
  });
  compare_starts(pair, seen);
}

void compare_clips(const Pair& pair, Seen& seen) {
  for_each_in_both<trace::Clip>(pair, [&](At at, const auto& a, const auto& b) {
    seen.numbers(at, "norm to clip to", a.max_norm, b.max_norm, diagnose::kOfDoubles);
  });
}

void compare_rates(const Pair& pair, Seen& seen) {
  for_each_in_both<trace::Update>(pair, [&](At at, const auto& a, const auto& b) {
    if (a.lr.size() != b.lr.size()) {
      seen.texts(at, "learning rates", rates_text(a.lr), rates_text(b.lr), true);
      return;
    }
    for (std::size_t i = 0; i < a.lr.size(); ++i)
      seen.numbers(at, "learning rate" + (i ? " of group " + std::to_string(i) : ""), a.lr[i],
                   b.lr[i], diagnose::kOfDoubles);
  });
}

}  // namespace lockstep::compare
