// One dump's bytes to entries. Everything is asked for by kind, since the bytes may be anything.
#include <lockstep/archive/objects.h>
#include <lockstep/base/error.h>
#include <lockstep/base/text.h>
#include <lockstep/flight/dump.h>
#include <lockstep/flight/json_graph.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep::flight {
namespace {

using namespace archive::unpickling;

constexpr std::int64_t kLargestNumber = std::int64_t{1} << 60;
// Shared parts are read again for each entry that refers to them; these bound what that can cost.
constexpr std::size_t kMostFields = 200;
constexpr std::size_t kMostFrames = 200;     // looked at, from the innermost outwards
constexpr std::size_t kMostSizes = 100'000;  // numbers in one entry's input or output sizes

// What a file's objects are, each asked for by the kind that must be there. Throws Error that names the kind found.
class GraphView {
 public:
  explicit GraphView(Graph graph) : graph_(std::move(graph)) {}

  Ref root() const { return graph_.root; }
  // `what` begins the message: "state".
  const Dict& dict(Ref ref, const char* what) const { return get<Dict>(ref, what, "a dict"); }
  const std::string& text(Ref ref, const char* what) const {
    return get<std::string>(ref, what, "a text");
  }
  std::int64_t integer(Ref ref, const char* what) const {
    return get<std::int64_t>(ref, what, "an integer");
  }
  bool flag(Ref ref, const char* what) const { return get<bool>(ref, what, "a bool"); }
  const std::vector<Ref>& list(Ref ref, const char* what) const {  // or a tuple
    if (const auto* tuple = std::get_if<Tuple>(&graph_.objects[ref])) return tuple->items;
    return get<List>(ref, what, "a list").items;
  }

 private:
  template <class T>
  const T& get(Ref ref, const char* what, const char* wanted) const {
    if (const auto* value = std::get_if<T>(&graph_.objects[ref])) return *value;
    throw Error(std::string(what) + " is " + kind(graph_.objects[ref]) + ", not " + wanted);
  }

  Graph graph_;
};

class Reader : GraphView {
 public:
  Reader(Graph graph, Names& names) : GraphView(std::move(graph)), names_(names) {}

  Dump read() {
    const auto& top = dict(root(), "the dump");
    Ref entries = 0;
    bool has_version = false, has_entries = false, recorded_any = false;
    Dump dump;
    for (const auto& [key, value] : top.entries) {
      const auto& name = text(key, "the dump's key");
      if (name == "version") {
        check_version(text(value, "version"));
        has_version = true;
      } else if (name == "pg_config") {
        dump.groups = groups(value);
      } else if (name == "pg_status") {
        recorded_any = !dict(value, "pg_status").entries.empty();
      } else if (name == "entries") {
        entries = value;
        has_entries = true;
      }
    }
    if (!has_version) throw Error("has no \"version\": not a flight recorder's dump");
    if (has_entries) dump.entries = read_entries(entries);  // JSON leaves an empty list out
    if (dump.entries.empty()) {
      dump.has_holes = recorded_any;
    } else {
      const auto first = dump.entries.front().record, last = dump.entries.back().record;
      dump.has_holes = last - first + 1 != static_cast<std::int64_t>(dump.entries.size());
      dump.is_cut = first > 0 && !dump.has_holes;
    }
    return dump;
  }

 private:
  static void check_version(const std::string& version) {
    if (version.rfind("2.", 0) != 0)
      throw Error("is of format version " + escaped(version) + "; version 2 is read");
  }

  std::vector<Entry> read_entries(Ref ref) {
    const auto& items = list(ref, "entries");
    std::vector<Entry> entries;
    entries.reserve(items.size());
    for (const auto item : items) try {
        entries.push_back(entry(item));
      } catch (const Error& error) {
        throw Error("entry " + std::to_string(entries.size()) + ": " + error.what());
      }
    // As torch writes them; other tools may have sorted them.
    std::stable_sort(entries.begin(), entries.end(),
                     [](const Entry& a, const Entry& b) { return a.record < b.record; });
    return entries;
  }

  std::vector<GroupConfig> groups(Ref ref) {
    std::vector<GroupConfig> found;
    for (const auto& [name, config] : dict(ref, "pg_config").entries) {
      const auto& members = dict(config, "a group's configuration");
      if (members.entries.size() > kMostFields) throw Error("pg_config has too many fields");
      for (const auto& [key, value] : members.entries)
        if (text(key, "a group's key") == "ranks")
          if (const auto& ranks = text(value, "a group's ranks"); ranks != "[]")
            found.push_back({name_of(name, "a group's name"), names_.id(ranks)});
    }
    return found;
  }

  enum class Field : std::uint8_t {
    record,
    sequence,
    p2p_sequence,
    group,
    operation,
    input_sizes,
    output_sizes,
    input_dtypes,
    output_dtypes,
    state,
    retired,
    is_p2p,
    frames,
    other
  };
  static constexpr unsigned kNeeded =
      1u << static_cast<int>(Field::record) | 1u << static_cast<int>(Field::sequence) |
      1u << static_cast<int>(Field::group) | 1u << static_cast<int>(Field::operation) |
      1u << static_cast<int>(Field::input_sizes) | 1u << static_cast<int>(Field::output_sizes) |
      1u << static_cast<int>(Field::state);

  static Field field_named(const std::string& name) {
    static const std::unordered_map<std::string_view, Field> kFields = {
        {"record_id", Field::record},
        {"collective_seq_id", Field::sequence},
        {"p2p_seq_id", Field::p2p_sequence},
        {"process_group", Field::group},
        {"profiling_name", Field::operation},
        {"input_sizes", Field::input_sizes},
        {"output_sizes", Field::output_sizes},
        {"input_dtypes", Field::input_dtypes},
        {"output_dtypes", Field::output_dtypes},
        {"state", Field::state},
        {"retired", Field::retired},
        {"is_p2p", Field::is_p2p},
        {"frames", Field::frames}};
    const auto found = kFields.find(name);
    return found == kFields.end() ? Field::other : found->second;
  }
  Field field(Ref key) {
    const auto [known, is_new] = fields_.try_emplace(key, Field::other);
    if (is_new) known->second = field_named(text(key, "a key"));
    return known->second;
  }

  Entry entry(Ref ref) {
    const auto& fields = dict(ref, "it").entries;
    if (fields.size() > kMostFields)
      throw Error("has " + std::to_string(fields.size()) + " fields; no recorder writes as many");
    Entry entry;
    unsigned seen = 0;
    for (const auto& [key, value] : fields) {
      const auto which = field(key);
      seen |= 1u << static_cast<int>(which);
      set(entry, which, value);
    }
    if ((seen & kNeeded) != kNeeded)
      throw Error(
          "lacks one of record_id, collective_seq_id, process_group, profiling_name, input_sizes, "
          "output_sizes, state");
    return entry;
  }

  void set(Entry& entry, Field field, Ref value) {
    switch (field) {
      case Field::record:
        entry.record = number(value, "record_id");
        return;
      case Field::sequence:
        entry.sequence = number(value, "collective_seq_id");
        return;
      case Field::p2p_sequence:
        entry.p2p_sequence = number(value, "p2p_seq_id");
        return;
      case Field::group: {
        const auto& items = list(value, "process_group");
        if (items.size() != 2) throw Error("process_group is not a name and a description");
        entry.group = name_of(items[0], "the group's name");
        entry.group_description = name_of(items[1], "the group's description");
        return;
      }
      case Field::operation:
        entry.operation = name_of(value, "profiling_name");
        return;
      case Field::input_sizes:
        entry.input_sizes = sizes(value);
        return;
      case Field::output_sizes:
        entry.output_sizes = sizes(value);
        return;
      case Field::input_dtypes:
        entry.input_dtypes = dtypes(value);
        return;
      case Field::output_dtypes:
        entry.output_dtypes = dtypes(value);
        return;
      case Field::state:
        entry.state = state(text(value, "state"));
        return;
      case Field::retired:
        entry.retired = flag(value, "retired");
        return;
      case Field::is_p2p:
        entry.is_p2p = flag(value, "is_p2p");
        return;
      case Field::frames:
        entry.call_site = call_site(value);
        return;
      case Field::other:
        return;
    }
  }

  // Of a thing that is counted; a recorder without one says -1.
  std::int64_t number(Ref ref, const char* what) const {
    const auto value = integer(ref, what);
    if (value < -1 || value > kLargestNumber)
      throw Error(std::string(what) + " is " + std::to_string(value));
    return value;
  }

  static State state(const std::string& name) {
    if (name == "scheduled") return State::scheduled;
    if (name == "started") return State::started;
    if (name == "completed") return State::completed;
    throw Error("an unknown state");
  }

  NameId name_of(Ref ref, const char* what) {
    const auto [known, is_new] = names_of_.try_emplace(ref, kNoName);
    if (is_new) known->second = names_.id(text(ref, what));
    return known->second;
  }

  NameId sizes(Ref ref) {
    const auto [known, is_new] = names_of_.try_emplace(ref, kNoName);
    if (!is_new) return known->second;
    scratch_ = "[";
    std::size_t count = 0;
    for (const auto tensor : list(ref, "sizes")) {
      scratch_ += scratch_.size() > 1 ? ", [" : "[";
      bool first = true;
      for (const auto size : list(tensor, "a tensor's sizes")) {
        if (++count > kMostSizes) throw Error("has sizes without end");
        if (!first) scratch_ += ", ";
        scratch_ += std::to_string(integer(size, "a size"));
        first = false;
      }
      scratch_ += ']';
    }
    scratch_ += ']';
    return known->second = names_.id(scratch_);
  }

  // Those there are, once each: a coalesced call has hundreds of tensors of one dtype.
  NameId dtypes(Ref ref) {
    const auto [known, is_new] = names_of_.try_emplace(ref, kNoName);
    if (!is_new) return known->second;
    std::set<std::string_view> there;
    for (const auto item : list(ref, "dtypes")) there.insert(text(item, "a dtype"));
    scratch_.clear();
    for (const auto dtype : there) (scratch_ += scratch_.empty() ? "" : ", ") += dtype;
    return known->second = names_.id(scratch_);
  }

  struct Frame {
    NameId text = kNoName;
    bool in_torch = false;
  };
  Frame frame(Ref ref) {
    const auto [known, is_new] = frames_.try_emplace(ref);
    if (!is_new) return known->second;
    std::string name, file, line;
    const auto& fields = dict(ref, "a frame").entries;
    if (fields.size() > kMostFields) throw Error("a frame has too many fields");
    for (const auto& [key, value] : fields) {
      const auto& what = text(key, "a frame's key");
      if (what == "name") name = text(value, "a frame's name");
      if (what == "filename") file = text(value, "a frame's file");
      if (what == "line") line = std::to_string(integer(value, "a frame's line"));
    }
    known->second.in_torch = file.find("/torch/") != std::string::npos;
    known->second.text = names_.id(name + " at " + file + ":" + line);
    return known->second;
  }
  NameId call_site(Ref ref) {
    const auto& frames = list(ref, "frames");
    const auto count = std::min(frames.size(), kMostFrames);
    for (std::size_t i = 0; i < count; ++i)
      if (const auto it = frame(frames[i]); !it.in_torch) return it.text;
    return count > 0 ? frame(frames[0]).text : kNoName;
  }

  Names& names_;
  std::unordered_map<Ref, Field> fields_;
  std::unordered_map<Ref, NameId> names_of_;  // a shared part is read once
  std::unordered_map<Ref, Frame> frames_;
  std::string scratch_;
};

Graph graph_of(std::string_view bytes) {
  if (bytes.empty()) throw Error("is empty");
  if (bytes.front() == '\x80') return unpickle_graph(bytes);
  if (bytes.find_first_not_of(" \t\r\n") != std::string_view::npos &&
      bytes[bytes.find_first_not_of(" \t\r\n")] == '{')
    return json_graph(bytes);
  throw Error("is neither a pickle nor JSON: not a flight recorder's dump");
}

}  // namespace

Dump parse_dump(std::string_view bytes, Names& names) {
  return Reader(graph_of(bytes), names).read();
}

}  // namespace lockstep::flight
