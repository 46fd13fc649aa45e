// The batches at the end of a pass that fill no accumulation window.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/format.h>
#include <lockstep/diagnose/passes.h>

#include <algorithm>
#include <functional>

namespace lockstep::diagnose {
namespace {
Verdict last_accumulation_window_lost(const Run& run);
}  // namespace

std::vector<Detector> last_window_detectors() {
  return {
      // Needs samples, updates, a finished train pass; of the batches that it leaves behind its
      // last update, a loss or a training forward. Rule: on every rank, all updates of the pass
      // take equally many batches, two or more; fewer are left, and either the gradients are
      // cleared before the next update, or there is none and the pass went through the data to its
      // end. A violation: whoever means to leave a tail out spares its backward. Not fooled by a
      // last update of fewer batches, batches that are drawn and not trained on, what is carried
      // over into the next pass, steps left out for infinities, or ranks that others go on without
      // (Join). Where several passes leave batches and no zero_grad was recorded, not_triggered.
      {.slug = "last-accumulation-window-lost",
       .equation = Equation::loss_weights,
       .line = "update",
       .needs = {"pass_begin", "samples", "update", "pass_end"},
       .participants = Participants::ranks,
       .fewest = 1,
       .accounts_for = {"gradient-not-the-mean"},
       .detect = last_accumulation_window_lost},
  };
}

namespace {
// What became of the gradients that a pass left behind.
enum class Fate { unknown, cleared, applied, never_applied };

// A finished train pass of one rank, cut at its updates.
struct PassWindows {
  std::int64_t step = 0;              // when it ended
  std::vector<std::int64_t> windows;  // batches behind each update
  std::int64_t left = 0;              // batches behind none, when it ended
  bool trained = false;               // the rank ran at least one of those through the model
  bool shadowed = false;              // other ranks updated after its last batch
  std::int64_t drawn = 0, largest_batch = 0;  // samples
  Fate fate = Fate::unknown;

  bool is_like(const PassWindows& other) const {
    return windows == other.windows && left == other.left && trained == other.trained &&
           shadowed == other.shadowed && fate == other.fate;
  }
  // Batches a window; 0 where there is none, or they differ. An update at the pass's end may have fewer.
  std::int64_t window() const {
    if (windows.empty()) return 0;
    auto end = windows.end();
    if (left == 0 && windows.back() < windows.front()) --end;
    const bool equal = std::adjacent_find(windows.begin(), end, std::not_equal_to<>()) == end;
    return equal ? windows.front() : 0;
  }
};

// Walks one rank's last attempt.
class WindowReader {
 public:
  std::vector<PassWindows> read(const trace::ParticipantTrace& rank, bool ended_in_order) {
    for (std::size_t i = rank.last_attempt; i < rank.events.size(); ++i) {
      step_ = rank.events[i].step;
      rank.events[i].payload.visit([this](const auto& payload) { take(payload); });
    }
    if (pending_ && ended_in_order) passes_.back().fate = Fate::never_applied;
    // Whether gradients were cleared is known of ranks that tell when they clear them.
    for (auto& pass : passes_)
      if (!tells_clearing_ && pass.fate == Fate::applied) pass.fate = Fate::unknown;
    return std::move(passes_);
  }

 private:
  template <class T>
  void take(const T&) {}
  void take(const trace::PassBegin& begin) {
    if (begin.phase != "train") {
      ++others_;
      return;
    }
    pass_ = PassWindows{};
    inside_ = true;
  }
  void take(const trace::Samples& batch) {
    if (!inside_ || batch.phase != "train") return;
    const auto size = static_cast<std::int64_t>(batch.ids.size());
    pass_.drawn += size;
    pass_.largest_batch = std::max(pass_.largest_batch, size);
    last_drawn_ = step_;
    ++since_update_;
  }
  void take(const trace::Loss&) { ran(); }
  void take(const trace::Forward& forward) {
    if (forward.training) ran();
  }
  void ran() { trained_ = trained_ || (inside_ && others_ == 0 && since_update_ > 0); }
  void take(const trace::Update&) { end_window(); }
  // A step that is left out for its infinities ends a window too.
  void take(const trace::ScaledStep& step) {
    if (!step.updates) end_window();
  }
  void end_window() {
    settle(Fate::applied);
    if (inside_) pass_.windows.push_back(since_update_);
    since_update_ = 0;
    trained_ = false;
  }
  void take(const trace::ZeroGrad&) {
    tells_clearing_ = true;
    if (!pending_) return;
    settle(Fate::cleared);
    since_update_ -= passes_.back().left;  // the next pass may have drawn already
    trained_ = trained_ && since_update_ > 0;
  }
  void take(const trace::PassEnd& end) {
    if (end.phase != "train") {
      --others_;
      return;
    }
    if (!inside_) return;
    inside_ = false;
    pass_.step = step_;
    pass_.left = since_update_;
    pass_.trained = trained_;
    pass_.shadowed = since_update_ > 0 && last_drawn_ != step_;
    passes_.push_back(pass_);
    pending_ = since_update_ > 0;
  }
  void settle(Fate fate) {
    if (pending_) passes_.back().fate = fate;
    pending_ = false;
  }

  std::vector<PassWindows> passes_;
  PassWindows pass_;
  std::int64_t step_ = 0, last_drawn_ = 0, since_update_ = 0;
  int others_ = 0;  // passes of other phases under way
  bool inside_ = false, pending_ = false, trained_ = false, tells_clearing_ = false;
};

// The passes of all ranks side by side, up to the first that some rank did not finish.
std::vector<std::vector<PassWindows>> windows_of_passes(const Run& run) {
  const bool completed = std::all_of(run.trace.ends.begin(), run.trace.ends.end(),
                                     [](const auto& end) { return end.how == "completed"; });
  std::vector<std::vector<PassWindows>> passes;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const auto& rank = *run.ranks[r];
    auto own = WindowReader().read(rank, completed && rank.closed && !rank.truncated);
    if (r == 0) passes.resize(own.size());
    passes.resize(std::min(passes.size(), own.size()));
    for (std::size_t k = 0; k < passes.size(); ++k) passes[k].push_back(std::move(own[k]));
  }
  return passes;
}

bool alike(const std::vector<PassWindows>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const auto& rank) { return rank.is_like(ranks.front()); });
}

// All of the data was drawn, but for a batch a rank. A run that stops before does so by choice.
bool is_whole(const std::vector<PassWindows>& ranks, std::int64_t size) {
  std::int64_t drawn = 0;
  for (const auto& rank : ranks) drawn += rank.drawn + rank.largest_batch;
  return size > 0 && drawn > size;
}

// What the program says an update has: the batches of a window, which are then one gradient's; other batches, as
// those of a second model are; or nothing.
enum class Declared { window, other, nothing };

Declared declared_of(const Run& run, const std::vector<PassWindows>& ranks) {
  std::int64_t batches = 0;  // one of each rank
  for (const auto& rank : ranks) batches += rank.largest_batch;
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->all<trace::Intent>())
      if (at.event->global_batch > 0 && batches > 0)
        return at.event->global_batch > batches ? Declared::window : Declared::other;
  return Declared::nothing;
}

Finding finding_of(const PassWindows& pass, const std::vector<int>& ranks, Declared declared) {
  return {.severity = declared == Declared::window ? Severity::violation : Severity::advice,
          .ranks = ranks,
          .step = pass.step,
          .evidence = fmt::format(
              "an update takes {} batches, and the pass ends {} behind its last one: their "
              "gradients are in no update, for {}",
              pass.window(), pass.left,
              pass.fate == Fate::cleared ? "they were cleared before the next" : "the run ended")};
}

Verdict last_accumulation_window_lost(const Run& run) {
  const auto passes = windows_of_passes(run);
  if (passes.empty()) return not_triggered(kNoTrainPass);

  bool accumulates = false, one_batch_each = true;
  std::string untold;  // why what a pass left could not be judged
  Declared declared = Declared::nothing;
  const PassWindows* cleared = nullptr;
  const PassWindows* at_end = nullptr;
  for (const auto& ranks : passes) {
    const auto& pass = ranks.front();
    for (const auto& rank : ranks)
      one_batch_each = one_batch_each && !rank.windows.empty() && rank.window() == 1;
    if (!alike(ranks) || pass.window() < 2) continue;
    declared = declared_of(run, ranks);
    if (declared == Declared::other)
      return not_applicable("the run declares that an update has one batch of each rank");
    accumulates = true;
    if (pass.left == 0 || pass.left >= pass.window() || pass.shadowed) continue;
    if (pass.fate == Fate::applied) return clean();  // what is left over is carried over, by choice
    if (pass.fate == Fate::unknown)
      untold =
          "a pass ends inside a window, and whether its gradients were cleared was not recorded";
    else if (!pass.trained)
      untold =
          "a pass ends inside a window, and no loss or forward of its last batches was recorded";
    else if (pass.fate == Fate::cleared && cleared == nullptr)
      cleared = &pass;
    else if (pass.fate == Fate::never_applied && is_whole(ranks, global_size(run, "train")))
      at_end = &pass;
  }
  if (cleared != nullptr) return found(finding_of(*cleared, run.numbers, declared));
  if (!untold.empty()) return not_triggered(untold);
  if (at_end != nullptr) return found(finding_of(*at_end, run.numbers, declared));
  if (accumulates) return clean();
  if (one_batch_each)
    return not_applicable("every update has one batch: no window can be cut short");
  return not_triggered("no pass in which every update of every rank has equally many batches");
}

}  // namespace
}  // namespace lockstep::diagnose
