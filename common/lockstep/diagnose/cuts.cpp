#include <lockstep/diagnose/cuts.h>

#include <algorithm>
#include <utility>

namespace lockstep::diagnose {

std::vector<UpdateStretch> cut_at_updates(const trace::ParticipantTrace& rank, std::size_t from) {
  std::vector<UpdateStretch> all;
  std::size_t begin = from;
  const auto cut = [&](std::size_t end, UpdateStretch update) {
    update.rank = &rank;
    update.begin = std::exchange(begin, std::max(begin, end));
    update.end = begin;
    all.push_back(std::move(update));
  };
  each_of<trace::Update, trace::ScaledStep, trace::Attempt>(
      rank, from, [&](std::size_t place, const trace::Event& event) {
        if (event.is<trace::Attempt>()) {
          if (begin < place) cut(place, {{}, rank.events[place - 1].step});
          return;
        }
        const auto* scaled = event.as<trace::ScaledStep>();
        if (scaled && scaled->updates) return;
        const auto is_behind = [&](const trace::Event& next) {
          return next.step == event.step && !next.is<trace::Update>() &&
                 !next.is<trace::ScaledStep>() && !next.is<trace::Attempt>();
        };
        auto end = place + 1;
        while (!scaled && end < rank.events.size() && is_behind(rank.events[end])) ++end;
        cut(end, {{}, event.step, !scaled, scaled != nullptr});
      });
  if (begin < rank.events.size()) cut(rank.events.size(), {{}, rank.events.back().step});
  return all;
}

std::vector<PassStretch> cut_at_passes(const trace::ParticipantTrace& rank,
                                       const std::string& phase, std::size_t from) {
  std::vector<PassStretch> all;
  bool inside = false;
  std::int64_t attempt = 0;
  const auto end = [&](std::size_t place, bool in_order) {
    if (inside) all.back().end = place, all.back().ended = in_order;
    inside = false;
  };
  each_of<trace::PassBegin, trace::PassEnd, trace::Attempt>(
      rank, from, [&](std::size_t place, const trace::Event& event) {
        const auto* begin = event.as<trace::PassBegin>();
        const auto* over = event.as<trace::PassEnd>();
        if (const auto* next = event.as<trace::Attempt>()) {
          end(place, false);
          attempt = next->restart_count;
        } else if (begin && begin->phase == phase) {
          end(place, false);
          all.push_back({{&rank, place, place}, phase, event.step, begin->epoch, attempt});
          inside = true;
        } else if (over && over->phase == phase) {
          end(place + 1, true);
        }
      });
  end(rank.events.size(), false);
  return all;
}

}  // namespace lockstep::diagnose
