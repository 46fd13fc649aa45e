// Pitfalls of a checkpoint's file: where its tensors go and under which names, who writes it, and who
// reads it when.
#include <lockstep/diagnose/detector.h>
#include <lockstep/diagnose/evidence.h>
#include <lockstep/diagnose/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace lockstep::diagnose {
namespace {
Verdict several_writers(const Run& run, bool all_local_zero, const std::string& meaning);
Verdict load_without_map_location(const Run& run);
Verdict module_prefix(const Run& run);
Verdict read_before_written(const Run& run);
Verdict torn_checkpoint(const Run& run);
}  // namespace

std::vector<Detector> checkpoint_files_detectors() {
  return {
      // Needs every rank's load and its device; W > 1. Rule: a rank loads to the device that the
      // file was saved from, which is another rank's. Not fooled by a load to the CPU, from where
      // tensors are copied.
      {.slug = "load-without-map-location",
       .equation = Equation::saved_is_held,
       .needs = {"checkpoint_file"},
       .complete = false,
       .stage = Stage::failure,
       .detect = load_without_map_location},
      // Rule: every name has the same prefix on one side and not on the other, and the rank does
      // not go on with weights that were saved. Not fooled by a prefix that the program takes off,
      // or has on both sides. Or: with `strict` off a module took a state that has none of its names (`state_taken`).
      {.slug = "module-prefix",
       .equation = Equation::saved_is_held,
       .whole = true,
       .needs = {"model", "checkpoint_file"},
       .or_needs = "state_taken",
       .fewest = 1,
       .complete = false,
       .stage = Stage::failure,
       .detect = module_prefix},
      // Needs a save and loads of the same file; W > 1. Rule: a rank reads other bytes than the one
      // writer wrote at the same step. Not fooled by ranks that begin with an older file, which the
      // writer reads too before it saves, nor by an older file of another name.
      {.slug = "read-before-written",
       .equation = Equation::saved_is_held,
       .needs = {"checkpoint_file"},
       .complete = false,
       .stage = Stage::failure,
       .accounts_for = {"update-differs", "replicas-diverged"},
       .detect = read_before_written},
      // Rule: several ranks write one file at one step, not all with LOCAL_RANK 0. Not fooled by a
      // file a rank.
      {.slug = "concurrent-writers",
       .equation = Equation::saved_is_held,
       .needs = {"checkpoint_file"},
       .complete = false,
       .stage = Stage::failure,
       .detect = [](const Run& run) { return several_writers(run, false, ""); }},
      // Rule: the same, and all have LOCAL_RANK 0. Not fooled by a folder a node. With one rank a
      // node, all ranks that write are local rank 0, and this is what is named. One path on each
      // node's own disk looks the same; it is told where the nodes write different bytes, and each
      // reads its own back after a collective that came after all had written. Where nodes write
      // equal bytes, or read none, it is named though it is right.
      {.slug = "local-rank-zero-writes",
       .equation = Equation::saved_is_held,
       .needs = {"checkpoint_file"},
       .complete = false,
       .stage = Stage::failure,
       .detect =
           [](const Run& run) {
             return several_writers(run, true, ": those whose LOCAL_RANK is 0, one a node");
           }},
      // Rule: the last save of a file never ended, and a rank that looked there last found no whole
      // checkpoint. Not fooled by a save that dies beside the older file, nor by one that is torn
      // while the ranks find another. A reader that dies of a half-written file, and takes the
      // writer down with it, looks the same.
      {.slug = "torn-checkpoint",
       .equation = Equation::saved_is_held,
       .whole = true,
       .needs = {"checkpoint_file"},
       .fewest = 1,
       .complete = false,
       .stage = Stage::failure,
       .detect = torn_checkpoint},
  };
}

namespace {
using trace::CheckpointFile;
using Names = std::vector<std::string>;

struct Access {
  int rank;
  std::int64_t step;
  std::size_t place;  // among the rank's events
  const CheckpointFile* event;
};

std::vector<Access> accesses(const Run& run, const std::string& action) {
  std::vector<Access> all;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const auto& events = run.ranks[r]->events;
    for (std::size_t i = 0; i < events.size(); ++i)
      if (const auto* event = events[i].as<CheckpointFile>())
        if (event->action == action) all.push_back({run.numbers[r], events[i].step, i, event});
  }
  return all;
}

bool holds(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// p where every one of `names` is in `longer` as p.name, and none as it is; nothing where it is not so.
std::optional<std::string> prefix_of(const Names& longer, const Names& names) {
  if (names.empty()) return std::nullopt;
  for (const auto& candidate : longer) {
    if (!candidate.ends_with("." + names.front())) continue;
    const auto prefix = candidate.substr(0, candidate.size() - names.front().size());
    if (std::all_of(names.begin(), names.end(), [&](const auto& name) {
          return holds(longer, prefix + name) && !holds(longer, name);
        }))
      return prefix;
  }
  return std::nullopt;
}

// Whether the rank went on behind this event with weights that were ever saved, or updated any at all.
bool went_on_with_saved_weights(const trace::ParticipantTrace& rank, std::size_t place) {
  const auto model = [](const trace::TrainingState& state) {
    const auto found = std::find(state.names.begin(), state.names.end(), "model");
    return found == state.names.end()
               ? 0
               : state.hashes[static_cast<std::size_t>(found - state.names.begin())];
  };
  std::set<std::uint64_t> saved;
  for (std::size_t i = 0; i < rank.events.size(); ++i) {
    if (i > place && rank.events[i].is<trace::Update>()) return true;
    const auto* state = rank.events[i].as<trace::TrainingState>();
    if (state == nullptr || state->names.size() != state->hashes.size()) continue;
    if (i < place && state->moment == "saved") saved.insert(model(*state));
    if (i > place && state->moment == "resumed")
      return saved.empty() || saved.count(model(*state)) > 0;
  }
  return false;
}

// The ranks that began to write one file at one step.
using Writers = std::map<std::pair<std::uint64_t, std::int64_t>, std::vector<Access>>;
Writers writers(const Run& run) {
  Writers all;
  for (const auto& save : accesses(run, "save_begin")) {
    auto& there = all[{save.event->file, save.step}];
    if (there.empty() || there.back().rank != save.rank) there.push_back(save);
  }
  return all;
}

// None leaves it before all have entered.
bool waits_for_all(const trace::Collective& call) {
  return call.op.starts_with("allreduce") || call.op.starts_with("allgather") ||
         call.op == "barrier";
}

// A collective that one rank entered behind `place`, and the other had left when it did what is at `until`.
bool meet(const trace::ParticipantTrace& one, std::size_t place,
          const trace::ParticipantTrace& other, std::size_t until) {
  std::set<std::pair<std::string, std::int64_t>> entered;
  for (std::size_t i = place; i < one.events.size(); ++i)
    if (const auto* call = one.events[i].as<trace::Collective>())
      if (waits_for_all(*call)) entered.insert({call->group, call->sequence});
  for (std::size_t i = 0; i < until; ++i)
    if (const auto* call = other.events[i].as<trace::Collective>())
      if (const auto left = other.events[i].left_ns;
          left > 0 && call->failed == 0 && left <= other.events[until].time_ns &&
          entered.count({call->group, call->sequence}) > 0)
        return true;
  return false;
}

// What a rank did with the file that it began to write.
struct Written {
  const trace::ParticipantTrace* rank = nullptr;
  std::size_t end = 0;                // the place where it had written
  std::uint64_t content = 0;          // as it was then
  std::optional<std::size_t> reread;  // the place where it read these very bytes
};
Written written(const trace::ParticipantTrace& rank, const Access& save) {
  Written all{.rank = &rank};
  for (std::size_t i = save.place + 1; i < rank.events.size(); ++i) {
    const auto* event = rank.events[i].as<CheckpointFile>();
    if (event == nullptr || event->file != save.event->file) continue;
    if (event->action == "save_begin") break;
    if (event->action == "save_end") all.end = i, all.content = event->content;
    if (event->action == "load" && all.content != 0 && event->content == all.content)
      all.reread = i;
  }
  return all;
}

// Each writer read its own bytes back when all had written, and they are other ones than the others'.
bool have_files_of_their_own(const Run& run, const std::vector<Access>& there) {
  std::vector<Written> all;
  std::set<std::uint64_t> contents;
  for (const auto& save : there) {
    all.push_back(written(run.rank(save.rank), save));
    contents.insert(all.back().content);
  }
  return contents.size() == there.size() &&
         std::all_of(all.begin(), all.end(), [&](const Written& reader) {
           return reader.reread && std::all_of(all.begin(), all.end(), [&](const Written& writer) {
                    return writer.rank == reader.rank ||
                           meet(*writer.rank, writer.end, *reader.rank, *reader.reread);
                  });
         });
}

Verdict several_writers(const Run& run, bool all_local_zero, const std::string& meaning) {
  const auto all = writers(run);
  if (all.empty()) return not_triggered("no rank wrote a checkpoint");
  for (const auto& [where, there] : all) {
    if (there.size() < 2) continue;
    const bool local_zero = std::all_of(
        there.begin(), there.end(), [](const auto& save) { return save.event->local_rank == 0; });
    if (local_zero != all_local_zero) continue;
    if (local_zero && have_files_of_their_own(run, there)) continue;
    std::vector<int> ranks;
    for (const auto& save : there) ranks.push_back(save.rank);
    return found(
        {.ranks = ranks,
         .step = where.second,
         .evidence = fmt::format("ranks {} write one file at one step{}", list(ranks), meaning)});
  }
  return clean();
}

Verdict load_without_map_location(const Run& run) {
  const auto loads = accesses(run, "load");
  std::map<std::string, std::set<int>> owners;
  for (const auto& load : loads)
    if (!load.event->device.empty()) owners[load.event->device].insert(load.rank);
  if (owners.empty()) return not_triggered("no rank read a checkpoint and told its device");
  std::set<int> ranks;
  std::string device;
  std::int64_t step = -1;
  for (const auto& load : loads)
    for (const auto& to : load.event->to)
      if (to != load.event->device && owners.count(to) > 0 && holds(load.event->from, to)) {
        if (ranks.empty()) step = load.step;
        ranks.insert(load.rank);
        device = to;
      }
  if (ranks.empty()) return clean();
  const std::vector<int> guilty(ranks.begin(), ranks.end());
  return found({.ranks = guilty,
                .step = step,
                .evidence = fmt::format(
                    "{} load to {}, from which the file was saved, and which is another rank's",
                    lockstep::ranks_text(guilty), device)});
}

// A state of other names, taken with strict off.
std::optional<Finding> nothing_taken(const Run& run) {
  for (const auto* rank : run.ranks)
    for (const auto& at : rank->all<trace::StateTaken>()) {
      const auto& state = *at.event;
      if (state.taken > 0 || state.unexpected.empty()) continue;
      return Finding{
          .ranks = run.numbers,
          .step = at.step,
          .evidence = fmt::format("{} took a state with strict off, and none of its {} is in it: "
                                  "\"{}\" is its first, and \"{}\" the state's. Nothing was loaded",
                                  state.module, plural(state.names, "name"), state.missing,
                                  state.unexpected)};
    }
  return std::nullopt;
}

Verdict module_prefix(const Run& run) {
  if (auto nothing = nothing_taken(run)) return found(std::move(*nothing));
  bool any = false;
  for (const auto& load : accesses(run, "load")) {
    const auto& rank = run.rank(load.rank);
    const auto models = rank.all<trace::Model>();
    if (!load.event->accepted || load.event->keys.empty() || models.empty()) continue;
    any = true;
    const auto& keys = load.event->keys;
    const auto& names = models.back().event->names;
    const auto in_file = prefix_of(keys, names), in_model = prefix_of(names, keys);
    if ((!in_file && !in_model) || went_on_with_saved_weights(rank, load.place)) continue;
    return found({.ranks = run.numbers,
                  .step = load.step,
                  .evidence = fmt::format(
                      "all {} begin with \"{}\" in the {}, and the rank did not go on with the "
                      "saved weights",
                      plural(static_cast<std::int64_t>(names.size()), "name"),
                      in_file.value_or(in_model.value_or("")),
                      in_file ? "file and not in the model" : "model and not in the file")});
  }
  return any ? clean() : not_triggered("no rank read a model's state and recorded its own names");
}

Verdict read_before_written(const Run& run) {
  const auto loads = accesses(run, "load"), saves = accesses(run, "save_end");
  if (loads.empty() || saves.empty()) return not_triggered("no checkpoint was written and read");
  const auto all_writers = writers(run);
  for (const auto& save : saves) {
    const auto at_once = all_writers.find({save.event->file, save.step});
    if (at_once == all_writers.end() || at_once->second.size() > 1) continue;
    const auto same = [&](const Access& other) {
      return other.event->file == save.event->file && other.step == save.step;
    };
    // The writer itself read it first: the ranks begin with an older one, and then save.
    if (std::any_of(loads.begin(), loads.end(), [&](const auto& load) {
          return same(load) && load.rank == save.rank && load.place < save.place;
        }))
      continue;
    std::set<std::uint64_t> written;
    for (const auto& other : saves)
      if (same(other)) written.insert(other.event->content);
    std::set<int> early;
    for (const auto& load : loads)
      if (same(load) && written.count(load.event->content) == 0) early.insert(load.rank);
    if (early.empty()) continue;
    const std::vector<int> ranks(early.begin(), early.end());
    return found({.ranks = ranks,
                  .step = save.step,
                  .evidence = fmt::format(
                      "{} read other bytes than rank {} wrote to the same file at this step",
                      lockstep::ranks_text(ranks), save.rank)});
  }
  return clean();
}

Verdict torn_checkpoint(const Run& run) {
  const auto loads = accesses(run, "load"), begun = accesses(run, "save_begin"),
             ended = accesses(run, "save_end");
  if (loads.empty() || begun.empty()) return not_triggered("no checkpoint was written and read");
  // A rank's last look at any checkpoint: what it found before is of no account.
  std::map<int, const Access*> last;
  for (const auto& load : loads) last[load.rank] = &load;
  for (const auto& save : begun) {
    const auto later = [&](const Access& other) {
      return other.event->file == save.event->file &&
             (other.rank != save.rank || other.place > save.place);
    };
    if (std::any_of(ended.begin(), ended.end(), later) ||
        std::any_of(begun.begin(), begun.end(), later))
      continue;
    std::vector<int> ranks;
    for (const auto& [rank, load] : last)
      if (load->event->file == save.event->file && !load->event->accepted) ranks.push_back(rank);
    if (ranks.empty()) continue;
    return found({.ranks = {save.rank},
                  .step = save.step,
                  .evidence = fmt::format("rank {} began to write a checkpoint and never ended; {} "
                                          "found nothing whole in its place",
                                          save.rank, lockstep::ranks_text(ranks))});
  }
  return clean();
}

}  // namespace
}  // namespace lockstep::diagnose
