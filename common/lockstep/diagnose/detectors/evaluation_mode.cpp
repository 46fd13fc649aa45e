// Pitfalls of evaluation: the mode that the model is in.
#include <lockstep/diagnose/cuts.h>
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/layers.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace lockstep::diagnose {
namespace {
Verdict evaluation_in_train_mode(const Run& run);
Verdict training_in_evaluation_mode(const Run& run);
}  // namespace

std::vector<Detector> evaluation_mode_detectors() {
  return {
      // Advice. Needs forwards of a model with dropout or BatchNorm. Rule: on every rank three updates or more come
      // after forwards in training mode, and then three or more after forwards in evaluation mode alone, to the end or
      // from right behind an evaluation. Not fooled by evaluations between updates, by updates whose forwards nobody sees, nor by a model that is in evaluation mode
      // from the start.
      {.slug = "training-in-evaluation-mode",
       .equation = Equation::modes,
       .needs = {"forward", "update", "settings"},
       .participants = Participants::ranks,
       .fewest = 1,
       .complete = false,
       .detect = training_in_evaluation_mode},
      // Needs `layer_modes`, and buffers before and after an evaluation. Rule: a metric is of the
      // samples that an evaluation drew, all of its forwards ran in training mode, and a layer's count of batches has
      // grown by every forward in training mode, these included. Not fooled by training batches that are run without
      // gradients to collect the statistics anew, since no metric is of them or an evaluation in evaluation mode
      // follows in its pass; by layers that are in evaluation mode by themselves; by statistics that are put back;
      // nor by an evaluation of the training data. Dropout alone does not show.
      {.slug = "evaluation-in-train-mode",
       .equation = Equation::modes,
       .needs = {"layer_modes", "buffers", "forward", "pass_begin", "samples", "metric"},
       .participants = Participants::ranks,
       .fewest = 1,
       .accounts_for = {"evaluation-not-reduced"},
       .detect = evaluation_in_train_mode},
  };
}

namespace {
// A pass over evaluation data on one rank, up to its last metric.
struct Evaluation {
  std::int64_t step = -1;
  std::int64_t drawn = 0;                           // samples
  std::int64_t in_training = 0, in_evaluation = 0;  // forwards in this mode
  std::vector<double> counts;                       // of samples, behind the metrics
  std::optional<std::size_t> counted_by;  // the buffer that counts its forwards as batches
};

// Walks one rank's events. Where a layer's count of batches has grown, from one record of it to the next, by every
// forward in training mode, it has counted those of an evaluation in between.
class EvaluationReader {
 public:
  explicit EvaluationReader(const trace::ParticipantTrace& rank)
      : rank_(rank), layers_(layers_in_training(rank)) {}

  std::vector<Evaluation> read() {
    if (layers_.empty()) return {};
    for (auto i = rank_.last_attempt; i < rank_.events.size(); ++i) {
      const auto& event = rank_.events[i];
      if (const auto* begin = event.as<trace::PassBegin>())
        begin_pass(*begin, event.step);
      else if (const auto* samples = event.as<trace::Samples>())
        draw(*samples);
      else if (const auto* forward = event.as<trace::Forward>())
        run(*forward);
      else if (const auto* metric = event.as<trace::Metric>())
        tell(*metric);
      else if (const auto* buffers = event.as<trace::Buffers>())
        compare(*buffers);
      else if (event.is<trace::Update>())
        inside_ = false;
    }
    return std::move(evaluations_);
  }

 private:
  void begin_pass(const trace::PassBegin& begin, std::int64_t step) {
    inside_ = begin.phase == "evaluation";
    if (inside_) evaluations_.push_back({.step = step});
  }
  void draw(const trace::Samples& samples) {
    inside_ = inside_ && samples.phase == "evaluation";
    if (inside_) evaluations_.back().drawn += static_cast<std::int64_t>(samples.ids.size());
  }
  void run(const trace::Forward& forward) {
    if (forward.training) ++forwards_;
    if (!inside_ || !evaluations_.back().counts.empty()) return;
    auto& mine = evaluations_.back();
    ++(forward.training ? mine.in_training : mine.in_evaluation);
  }
  void tell(const trace::Metric& metric) {
    if (inside_ && metric.phase == "evaluation") evaluations_.back().counts.push_back(metric.count);
  }
  void compare(const trace::Buffers& buffers) {
    std::vector<double> batches;
    for (const auto& layer : layers_) {
      const auto place = layer.batches();
      batches.push_back(place < buffers.values.size() ? buffers.values[place].norm : -1);
    }
    for (std::size_t l = 0; l < batches.size() && !before_.empty(); ++l)
      if (before_[l] >= 0 && batches[l] - before_[l] == static_cast<double>(forwards_))
        for (auto e = compared_; e < evaluations_.size(); ++e)
          evaluations_[e].counted_by = layers_[l].batches();
    before_ = std::move(batches);
    compared_ = evaluations_.size();
    forwards_ = 0;
  }

  const trace::ParticipantTrace& rank_;
  std::vector<Layer> layers_;
  std::vector<Evaluation> evaluations_;
  bool inside_ = false;         // an evaluation
  std::vector<double> before_;  // each layer's batches, when its buffers were recorded last
  std::size_t compared_ = 0;    // evaluations before that
  std::int64_t forwards_ = 0;   // in training mode, since then
};

// The metric counts the samples that this rank drew, or those of all ranks without padding.
bool is_of(const Evaluation& evaluation, double drawn_by_all, int world_size) {
  return std::any_of(evaluation.counts.begin(), evaluation.counts.end(), [&](double count) {
    return count == static_cast<double>(evaluation.drawn) ||
           (count <= drawn_by_all && count > drawn_by_all - world_size);
  });
}

// The k-th evaluations of all ranks that had so many.
using EvaluationsOfRanks = std::vector<std::pair<int, Evaluation>>;
std::vector<EvaluationsOfRanks> evaluations_of(const Run& run) {
  std::vector<EvaluationsOfRanks> all;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const auto mine = EvaluationReader(*run.ranks[r]).read();
    if (all.size() < mine.size()) all.resize(mine.size());
    for (std::size_t k = 0; k < mine.size(); ++k) all[k].emplace_back(run.numbers[r], mine[k]);
  }
  return all;
}

// A training set may be evaluated, and its statistics are those of training.
enum class TrainingData { no, yes, not_known };
TrainingData draws_training_data(const trace::ParticipantTrace& rank) {
  auto draws = TrainingData::no;
  for (const auto& a : rank.all<trace::Dataset>())
    for (const auto& b : rank.all<trace::Dataset>()) {
      if (a.event->phase == b.event->phase || a.event->global_size != b.event->global_size)
        continue;
      if (a.event->content_as_set == 0 || b.event->content_as_set == 0)
        draws = TrainingData::not_known;
      else if (a.event->content_as_set == b.event->content_as_set)
        return TrainingData::yes;
    }
  return draws;
}

bool moves_statistics(const Evaluation& evaluation) {
  return evaluation.in_training > 0 && evaluation.in_evaluation == 0 && evaluation.counted_by;
}

Verdict evaluation_in_train_mode(const Run& run) {
  bool looked = false;
  for (const auto& of_ranks : evaluations_of(run)) {
    double drawn = 0;
    for (const auto& [rank, mine] : of_ranks) drawn += static_cast<double>(mine.drawn);
    const Evaluation* first = nullptr;  // that is told
    const trace::ParticipantTrace* by = nullptr;
    std::vector<int> ranks;
    // Of a rank that tells no metric the evaluation has no end: it alone is no evidence.
    for (const auto& [rank, mine] : of_ranks) {
      const bool tells = is_of(mine, drawn, run.world_size);
      looked = looked || (tells && (mine.in_evaluation > 0 || moves_statistics(mine)));
      if (!moves_statistics(mine)) continue;
      ranks.push_back(rank);
      if (!tells || first != nullptr) continue;
      first = &mine;
      by = &run.rank(rank);
    }
    if (first == nullptr) continue;
    const auto training_data = draws_training_data(*by);
    if (training_data == TrainingData::not_known)
      return not_triggered(
          "an evaluation ran in training mode, and its data may be those of training: both sets "
          "are of one size, and their contents were not recorded");
    if (training_data == TrainingData::yes) continue;
    const auto& names = by->latest<trace::Buffers>().front().event->names;
    return found({.ranks = ranks,
                  .step = first->step,
                  .evidence = fmt::format("an evaluation's forwards ({}) ran in training mode, and "
                                          "{} counts them as batches of the running statistics",
                                          first->in_training,
                                          tensor_text("buffer", *first->counted_by, names))});
  }
  return looked ? clean()
                : not_triggered(
                      "no evaluation was recorded with its forwards and a metric, of a "
                      "model that keeps running statistics");
}

// ---- training in evaluation mode ----

// Layers that do otherwise there, by what they print of themselves.
bool has_modes(const std::string& layer) {
  if (layer.find("BatchNorm") != std::string::npos) return true;
  const auto p = layer.find("p=");
  if (layer.find("Dropout") == std::string::npos || p == std::string::npos) return false;
  double drops = 0;
  std::from_chars(layer.data() + p + 2, layer.data() + layer.size(), drops);
  return drops > 0;
}
bool has_modes(const trace::ParticipantTrace& rank) {
  bool found = false;
  each_setting(
      rank.latest<trace::Settings>(), trace::SettingsOf::model,
      [&](const std::string&, const std::string& layer) { found = found || has_modes(layer); });
  return found;
}

bool is_behind_evaluation(const UpdateStretch& update) {
  const auto passes = update.all<trace::PassBegin>();
  return update.has<trace::EvaluationInput>() || std::ranges::any_of(passes, [](const auto& at) {
           return at.event->phase == "evaluation";
         });
}

// The first of several updates one after another none of whose forwards was in training mode, behind several that had
// such a forward, by the same attempt and model. Where training mode comes back, an evaluation must have ended it.
std::optional<std::int64_t> stays_in_evaluation_mode(const trace::ParticipantTrace& rank) {
  constexpr std::int64_t kFew = 3;  // updates
  std::int64_t with = 0, without = 0, first = -1;
  bool by_evaluation = false;
  const auto stayed = [&] { return with >= kFew && without >= kFew; };
  for (const auto& update : cut_at_updates(rank)) {
    const bool is_another = update.has<trace::Engine>() || update.has<trace::Attempt>();
    if (is_another && stayed()) break;
    if (is_another) with = without = 0;
    const auto forwards = update.all<trace::Forward>();
    const bool backward = update.has<trace::Backward>() || update.has<trace::Loss>();
    if (!update.updated || (forwards.empty() && !backward)) continue;  // by a second optimizer
    const bool trains =
        std::ranges::any_of(forwards, [](const auto& at) { return at.event->training; });
    if (trains && stayed() && by_evaluation) break;
    if (trains) ++with;
    if (trains || forwards.empty())  // forwards of a compiled or captured model are not seen
      without = 0;
    else if (without++ == 0)
      first = update.step, by_evaluation = is_behind_evaluation(update);
  }
  return stayed() ? std::optional(first) : std::nullopt;
}

Verdict training_in_evaluation_mode(const Run& run) {
  std::optional<std::int64_t> first;
  for (const auto* rank : run.ranks) {
    const auto since = stays_in_evaluation_mode(*rank);
    if (!since || !has_modes(*rank)) return clean();
    first = std::min(first.value_or(*since), *since);
  }
  return found({.severity = Severity::advice,
                .ranks = run.numbers,
                .step = *first,
                .evidence =
                    "the forwards of earlier updates were in training mode; those of this one "
                    "and of the next ones are all in evaluation mode"});
}

}  // namespace
}  // namespace lockstep::diagnose
