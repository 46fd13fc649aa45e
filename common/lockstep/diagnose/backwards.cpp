#include <lockstep/diagnose/backwards.h>
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

// Walks one rank's events and cuts them at its updates.
class SpanReader {
 public:
  std::vector<UpdateSpan> read(const trace::ParticipantTrace& rank) {
    for (const auto& event : rank.events) {
      span_.step = event.step;
      started_ = started_ || event.step >= 0;
      event.payload.visit([this](const auto& payload) { take(payload); });
    }
    if (started_ && any_) spans_.push_back(span_);
    return std::move(spans_);
  }

 private:
  template <class T>
  void take(const T&) {}
  void take(const trace::Model& model) {
    span_.parameters = static_cast<std::int64_t>(model.shapes.size());
    span_.elements = static_cast<double>(elements_of(model));
  }
  void take(const trace::Engine& engine) {
    if (engine.kind != "distributed_data_parallel") return;
    span_.engine_parameters = engine.parameters;
    span_.engine_elements = span_.elements;
  }
  void take(const trace::SyncGradients& told) { wanted_ = told.wanted; }
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
    if (!wanted_) return;
    span_.arrived.push_back(gradient.parameter);
    for (auto* parts : {&span_.backwards, &span_.begun, &span_.forwards})
      if (!parts->empty()) parts->back().arrived.push_back(gradient.parameter);
  }
  void take(const trace::GradientCleared& gradient) { ++cleared_[gradient.parameter]; }
  void take(const trace::Collective& call) {
    if (!started_ || !may_carry_gradients(call)) return;
    const auto elements = static_cast<double>(elements_of(call));
    span_.reduced += elements;
    for (auto* parts : {&span_.backwards, &span_.begun, &span_.forwards}) {
      if (parts->empty()) continue;
      parts->back().reduced += elements;
      if (!wanted_) parts->back().reduced_unwanted += elements;
    }
  }
  void take(const trace::LocalGradients& gradients) {
    any_ = span_.backward_ended = true;
    if (span_.samples == 0) span_.samples = static_cast<double>(gradients.samples);
  }
  // Of a step that is left out nothing is kept.
  void take(const trace::ScaledStep& step) {
    if (!step.updates) begin_span();
  }
  void take(const trace::Update&) {
    span_.backward_ended = span_.updated = true;
    span_.cleared = cleared_from_most();
    auto done = begin_span();
    spans_.push_back(std::move(done));
  }
  // More than half of the parameters' gradients were cleared at least so often.
  std::int64_t cleared_from_most() const {
    if (2 * static_cast<std::int64_t>(cleared_.size()) <= span_.parameters) return 0;
    std::vector<std::int64_t> times;
    for (const auto& [parameter, count] : cleared_) times.push_back(count);
    std::sort(times.rbegin(), times.rend());
    return times[static_cast<std::size_t>(span_.parameters / 2)];
  }
  // The one that it ends.
  UpdateSpan begin_span() {
    UpdateSpan next;
    next.parameters = span_.parameters;
    next.elements = span_.elements;
    next.engine_parameters = span_.engine_parameters;
    next.engine_elements = span_.engine_elements;
    any_ = false;
    drawn_ = 0;
    new_rows_ = 0;
    rows_.clear();
    cleared_.clear();
    return std::exchange(span_, std::move(next));
  }

  std::vector<UpdateSpan> spans_;
  UpdateSpan span_;
  bool wanted_ = true;
  bool started_ = false;       // training, that is: what was reduced before does not count
  bool any_ = false;           // of a backward, in this span
  double drawn_ = 0;           // train samples since the last forward
  std::int64_t new_rows_ = 0;  // since the last forward
  std::unordered_set<std::int64_t> rows_;         // that forwards were given, in this span
  std::map<std::int64_t, std::int64_t> cleared_;  // of each parameter, in this span
};

std::vector<std::vector<UpdateSpan>> find_update_spans(const Run& run) {
  std::vector<std::vector<UpdateSpan>> spans;
  for (const auto* rank : run.ranks) spans.push_back(SpanReader().read(*rank));
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
