#include <lockstep/diagnose/backwards.h>
#include <lockstep/diagnose/cuts.h>
#include <lockstep/diagnose/gradients.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>
#include <utility>

namespace lockstep::diagnose {
namespace {

// Gradients travel as floating-point numbers; the engine's note of what was used does not.
bool may_carry_gradients(const trace::Collective& call) {
  return call.op.find("allreduce") == 0 && call.dtype.find("float") != std::string::npos;
}

// What goes on from one update to the next.
struct Known {
  std::int64_t parameters = 0, engine_parameters = 0;
  double elements = 0, engine_elements = 0;
  bool wanted = true;    // a reduction
  bool started = false;  // training, that is: what was reduced before does not count
};

// Reads the events of one update.
class SpanReader {
 public:
  explicit SpanReader(Known& known) : known_(known) {}

  UpdateSpan read(const UpdateStretch& update) {
    for (const auto& event : update.events()) {
      known_.started = known_.started || event.step >= 0;
      event.payload.visit([this](const auto& payload) { take(payload); });
    }
    span_.step = update.step;
    span_.updated = update.updated;
    span_.backward_ended = span_.backward_ended || update.updated;
    span_.parameters = known_.parameters;
    span_.engine_parameters = known_.engine_parameters;
    span_.elements = known_.elements;
    span_.engine_elements = known_.engine_elements;
    span_.cleared = update.updated ? cleared_from_most() : 0;
    return std::move(span_);
  }
  bool any() const { return any_; }  // of a backward

 private:
  template <class T>
  void take(const T&) {}
  void take(const trace::Model& model) {
    known_.parameters = static_cast<std::int64_t>(model.shapes.size());
    known_.elements = static_cast<double>(elements_of(model));
  }
  void take(const trace::Engine& engine) {
    if (engine.kind != "distributed_data_parallel") return;
    known_.engine_parameters = engine.parameters;
    known_.engine_elements = known_.elements;
  }
  void take(const trace::SyncGradients& told) { known_.wanted = told.wanted; }
  void take(const trace::Samples& drawn) {
    if (drawn.phase != "train") return;
    span_.samples += static_cast<double>(drawn.ids.size());
    drawn_ += static_cast<double>(drawn.ids.size());
  }
  void take(const trace::Rows& fed) {
    for (const auto hash : fed.hashes) new_rows_ += rows_.insert(hash).second ? 1 : 0;
  }
  void take(const trace::Forward& forward) {
    if (!forward.training) return;
    Backward backward;
    backward.count = std::exchange(drawn_, 0);
    backward.new_rows = std::exchange(new_rows_, 0);
    span_.forwards.push_back(backward);
  }
  void take(const trace::Loss& loss) {
    any_ = true;
    Backward backward;
    backward.count = static_cast<double>(loss.count);
    backward.share = loss.backward_value / (loss.sum / backward.count);
    span_.backwards.push_back(backward);
    span_.begun.push_back(backward);
  }
  void take(const trace::Backward&) { span_.begun.emplace_back(); }
  void take(const trace::GradientArrived& gradient) {
    any_ = true;
    if (!known_.wanted) return;
    span_.arrived.push_back(gradient.parameter);
    for (auto* parts : {&span_.backwards, &span_.begun, &span_.forwards})
      if (!parts->empty()) parts->back().arrived.push_back(gradient.parameter);
  }
  void take(const trace::GradientCleared& gradient) { ++cleared_[gradient.parameter]; }
  void take(const trace::Collective& call) {
    if (!known_.started || !may_carry_gradients(call)) return;
    const auto elements = static_cast<double>(elements_of(call));
    span_.reduced += elements;
    for (auto* parts : {&span_.backwards, &span_.begun, &span_.forwards}) {
      if (parts->empty()) continue;
      parts->back().reduced += elements;
      if (!known_.wanted) parts->back().reduced_unwanted += elements;
    }
  }
  void take(const trace::LocalGradients& gradients) {
    any_ = span_.backward_ended = true;
    if (span_.samples == 0) span_.samples = static_cast<double>(gradients.samples);
  }
  // More than half of the parameters' gradients were cleared at least so often.
  std::int64_t cleared_from_most() const {
    if (2 * static_cast<std::int64_t>(cleared_.size()) <= known_.parameters) return 0;
    std::vector<std::int64_t> times;
    for (const auto& [parameter, count] : cleared_) times.push_back(count);
    std::sort(times.rbegin(), times.rend());
    return times[static_cast<std::size_t>(known_.parameters / 2)];
  }

  Known& known_;
  UpdateSpan span_;
  bool any_ = false;
  double drawn_ = 0;                              // train samples since the last forward
  std::int64_t new_rows_ = 0;                     // since the last forward
  std::unordered_set<std::int64_t> rows_;         // that forwards were given
  std::map<std::int64_t, std::int64_t> cleared_;  // of each parameter
};

// Of a step that is left out nothing is kept.
std::vector<UpdateSpan> spans_of(const trace::ParticipantTrace& rank) {
  std::vector<UpdateSpan> spans;
  Known known;
  const auto updates = cut_at_updates(rank);
  spans.reserve(updates.size());  // they are kept
  for (const auto& update : updates) {
    SpanReader reader(known);
    auto span = reader.read(update);
    const bool is_last = update.end == rank.events.size() && !update.left_out;
    if (update.updated || (is_last && known.started && reader.any()))
      spans.push_back(std::move(span));
  }
  return spans;
}

std::vector<std::vector<UpdateSpan>> find_update_spans(const Run& run) {
  std::vector<std::vector<UpdateSpan>> spans;
  for (const auto* rank : run.ranks) spans.push_back(spans_of(*rank));
  return spans;
}

}  // namespace

const std::vector<std::vector<UpdateSpan>>& update_spans(const Run& run) {
  return run.once(find_update_spans);
}

bool stopped_unseen(const trace::ParticipantTrace& rank) {
  std::int64_t begun = 0, ended = 0;  // train passes
  // Since the last update: a step began, waits for other ranks, had an arrival recorded.
  bool steps = false, waits = false, arrived = false;
  for (const auto& event : rank.events) {
    if (event.is<trace::Update>()) steps = waits = arrived = false;
    if (event.is<trace::GradientArrived>()) arrived = true;
    if (const auto* drawn = event.as<trace::Samples>()) steps = steps || drawn->phase == "train";
    if (const auto* forward = event.as<trace::Forward>()) steps = steps || forward->training;
    if (const auto* call = event.as<trace::Collective>())
      waits = waits || event.left_ns == 0 || call->failed != 0;
    if (const auto* begin = event.as<trace::PassBegin>()) begun += begin->phase == "train";
    if (const auto* end = event.as<trace::PassEnd>()) ended += end->phase == "train";
  }
  // A batch that is left over when a pass ends in order is no step.
  const bool passes_ended = begun > 0 && begun == ended;
  return !arrived && (!rank.closed || rank.truncated || waits || (steps && !passes_ended));
}

std::string whole(double count) {
  return std::to_string(static_cast<std::int64_t>(count));
}

std::vector<std::int64_t> not_arrived(const UpdateSpan& span) {
  std::vector<std::int64_t> missing;
  for (std::int64_t parameter = 0; parameter < span.parameters; ++parameter)
    if (std::find(span.arrived.begin(), span.arrived.end(), parameter) == span.arrived.end())
      missing.push_back(parameter);
  return missing;
}

std::optional<std::size_t> waited_for(const Run& run) {
  const auto& steps = gradient_steps(run);
  if (run.devices || steps.empty() || !has_ddp(run)) return std::nullopt;
  if (!std::all_of(steps.begin(), steps.end(), is_unreduced)) return std::nullopt;
  std::vector<bool> comes;  // of each parameter
  for (const auto* rank : run.ranks) {
    if (!rank->all<trace::SyncGradients>().empty()) return std::nullopt;
    std::set<std::int64_t> forwards;
    for (const auto& at : rank->all<trace::Rows>()) forwards.insert(at.step);
    const auto local = by_step<trace::LocalGradients>(*rank);
    for (const auto& step : steps) {
      const auto found = local.find(step.step);
      if (forwards.count(step.step) == 0 || found == local.end()) return std::nullopt;
      const auto& values = found->second->values;
      comes.resize(std::max(comes.size(), values.size()));
      for (std::size_t t = 0; t < values.size(); ++t)
        comes[t] = comes[t] || !values[t].sketch.empty();
    }
  }
  const auto first = std::find(comes.begin(), comes.end(), false);
  if (first == comes.end()) return std::nullopt;
  return static_cast<std::size_t>(first - comes.begin());
}

}  // namespace lockstep::diagnose
