// Work on a device that nothing puts in order.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/format.h>

#include <algorithm>
#include <map>
#include <optional>

namespace lockstep::diagnose {
namespace {
Verdict wrong_stream(const Run& run);
}  // namespace

std::vector<Detector> streams_detectors() {
  return {
      // Rule: a stream reads a buffer that another writes, or writes one that another uses, and
      // nothing orders the two: one stream's order, events recorded and waited for, and the
      // program's own waiting (happens-before, by vector clocks). Says so where it went well, too:
      // which of them is first is chance. Not fooled by stream 0, the legacy default stream, which
      // orders all others. Blind to what is not told: blocking streams, calls that synchronize on
      // their own (trace.md).
      {.slug = "wrong-stream",
       .equation = Equation::mean_gradient,
       .needs = {"stream_use"},
       .fewest = 1,
       .complete = false,
       .detect = wrong_stream},
  };
}

namespace {
using trace::StreamUse;

// The legacy default stream: what it is given waits for all that the others were given before, and they for it.
constexpr std::int64_t kLegacyDefault = 0;

// How far each stream has got, as far as somebody knows: the number of its pieces of work.
class Clock {
 public:
  void advance(std::int64_t stream) { ++done_[stream]; }
  void join(const Clock& other) {
    for (const auto& [stream, count] : other.done_) done_[stream] = std::max(done_[stream], count);
  }
  std::int64_t of(std::int64_t stream) const {
    const auto found = done_.find(stream);
    return found == done_.end() ? 0 : found->second;
  }

 private:
  std::map<std::int64_t, std::int64_t> done_;
};

// The last piece of work of each stream that read, or wrote, a buffer.
struct Uses {
  std::map<std::int64_t, std::int64_t> reads, writes;
};

struct Race {
  StreamUse use;
  std::int64_t other = 0;  // the stream that it does not wait for
  bool other_writes = true;
  std::int64_t step = -1;
};

// Goes through one rank's calls as the device is bound to order them, and no more: a stream does one thing after
// another, waits for events, and begins nothing before the program has said so.
class Device {
 public:
  // What this use may overtake; nothing where it is in order.
  std::optional<Race> add(const StreamUse& use) {
    if (use.action == "synchronize") return wait_on_the_host(use), std::nullopt;
    auto& stream = streams_[use.stream];
    stream.join(host_);
    for (const auto& [number, other] : streams_)
      if (use.stream == kLegacyDefault || number == kLegacyDefault) stream.join(other);
    if (use.action == "record") events_[use.event] = stream;
    if (use.action == "wait") stream.join(events_[use.event]);
    if (use.action != "read" && use.action != "write") return std::nullopt;
    auto& uses = buffers_[use.buffer];
    auto race = unordered(use, stream, uses.writes, true);
    if (!race && use.action == "write") race = unordered(use, stream, uses.reads, false);
    stream.advance(use.stream);
    (use.action == "write" ? uses.writes : uses.reads)[use.stream] = stream.of(use.stream);
    return race;
  }

 private:
  void wait_on_the_host(const StreamUse& use) {
    if (use.stream >= 0) return host_.join(streams_[use.stream]);
    if (use.event != 0) return host_.join(events_[use.event]);
    for (const auto& [number, stream] : streams_) host_.join(stream);
  }
  static std::optional<Race> unordered(const StreamUse& use, const Clock& stream,
                                       const std::map<std::int64_t, std::int64_t>& before,
                                       bool writes) {
    for (const auto& [other, count] : before)
      if (other != use.stream && stream.of(other) < count) return Race{use, other, writes};
    return std::nullopt;
  }

  Clock host_;
  std::map<std::int64_t, Clock> streams_;
  std::map<std::uint64_t, Clock> events_;
  std::map<std::uint64_t, Uses> buffers_;
};

std::optional<Race> first_race(const trace::ParticipantTrace& rank) {
  Device device;
  for (const auto& at : rank.latest<StreamUse>())
    if (auto race = device.add(*at.event)) {
      race->step = at.step;
      return race;
    }
  return std::nullopt;
}

Verdict wrong_stream(const Run& run) {
  bool recorded = false;
  std::vector<int> ranks;
  std::optional<Race> first;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    recorded = recorded || !run.ranks[r]->latest<StreamUse>().empty();
    const auto race = first_race(*run.ranks[r]);
    if (!race) continue;
    if (!first || race->step < first->step) first = race;
    ranks.push_back(run.numbers[r]);
  }
  if (!recorded) return not_triggered("no rank recorded what its streams are given to do");
  if (!first) return clean();
  const auto& use = first->use;
  return found({.ranks = ranks,
                .step = first->step,
                .evidence = fmt::format("stream {} {}s a buffer that stream {} {}, and no event, "
                                        "nor the program, makes it wait until that is done",
                                        use.stream, use.action, first->other,
                                        first->other_writes ? "writes" : "reads")});
}

}  // namespace
}  // namespace lockstep::diagnose
