#include <lockstep/base/hash.h>
#include <lockstep/base/json_text.h>
#include <lockstep/trace/json.h>

#include <nlohmann/json.hpp>
#include <type_traits>

namespace lockstep::trace {
namespace {

using nlohmann::json;

// A third visitor, beside Encoder and Decoder. Hashes are 64 bits, more than a JSON number holds
// for many readers: they are written as hexadecimal text.
class JsonFields {
 public:
  template <class T>
  void operator()(const char* name, T& value) {
    fields[name] = to_json(value);
  }
  json fields = json::object();

 private:
  static json to_json(std::uint64_t hash) { return hexadecimal(hash); }
  template <class T>
  requires(std::is_arithmetic_v<T> && !std::is_same_v<T, std::uint64_t>) static json
      to_json(T value) {
    return value;
  }
  template <class T>
  requires std::is_enum_v<T>
  static json to_json(T value) { return to_string(value); }
  static json to_json(std::string& text) { return text; }
  static json to_json(Ids& ids) { return ids.list(); }
  template <class T>
  static json to_json(std::vector<T>& list) {
    json items = json::array();
    for (auto& item : list) items.push_back(to_json(item));
    return items;
  }
  template <class T>
  requires std::is_class_v<T>
  static json to_json(T& nested) {
    JsonFields inner;
    nested.visit(inner);
    return inner.fields;
  }
};

json event_json(const Event& event) {
  JsonFields visitor;
  event.payload.visit([&](auto payload) { payload.visit(visitor); });
  if (event.is<Collective>()) visitor.fields["left_ns"] = event.left_ns;
  return {{"event", name_of(event.payload.index())},
          {"time_ns", event.time_ns},
          {"step", event.step},
          {"fields", visitor.fields}};
}

}  // namespace

std::string to_json(const Trace& trace) {
  json ranks = json::array();
  for (const auto& rank : trace.ranks) {
    json events = json::array();
    for (const auto& event : rank.events) events.push_back(event_json(event));
    ranks.push_back({{"rank", rank.participant.rank},
                     {"kind", rank.participant.kind},
                     {"pid", rank.pid},
                     {"started_ns", rank.started_ns},
                     {"started_unix_ns", rank.started_unix_ns},
                     {"closed", rank.closed},
                     {"events", events}});
  }
  json ends = json::array();
  for (auto end : trace.ends) {
    JsonFields visitor;
    end.visit(visitor);
    ends.push_back(visitor.fields);
  }
  return json_text(json{{"schema_version", 1},
                        {"world_size", trace.world_size},
                        {"ranks", ranks},
                        {"ends", ends}},
                   1);
}

}  // namespace lockstep::trace
