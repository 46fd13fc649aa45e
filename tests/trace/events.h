// Random events, and events as text that can be compared.
#pragma once

#include <lockstep/trace/event.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::trace::test {

// Fills an event's fields with anything they can hold: extreme integers, NaN, bytes that are no
// text, empty lists.
class RandomFields {
 public:
  explicit RandomFields(std::uint64_t seed) : engine_(seed) {}

  template <class T>
  void operator()(const char*, T& value) {
    fill(value);
  }

  std::uint64_t below(std::uint64_t limit) { return engine_() % limit; }

 private:
  void fill(std::int64_t& value) {
    const std::int64_t all[] = {0, -1, std::numeric_limits<std::int64_t>::min(),
                                std::numeric_limits<std::int64_t>::max(),
                                static_cast<std::int64_t>(engine_())};
    value = all[below(std::size(all))];
  }
  void fill(std::uint64_t& value) { value = engine_(); }
  void fill(bool& value) { value = below(2) == 1; }
  void fill(double& value) {
    const double all[] = {0.0,
                          -0.0,
                          5e-324,
                          std::numeric_limits<double>::quiet_NaN(),
                          -std::numeric_limits<double>::infinity(),
                          static_cast<double>(engine_()) / 3};
    value = all[below(std::size(all))];
  }
  void fill(std::string& text) {
    text.resize(below(20));
    for (auto& byte : text) byte = static_cast<char>(below(256));
  }
  template <class T>
  void fill(std::vector<T>& list) {
    list.resize(below(6));
    for (auto& item : list) fill(item);
  }
  void fill(Ids& ids) {
    std::vector<std::int64_t> list;
    fill(list);
    ids = std::move(list);
  }
  void fill(SettingsOf& of) { of = static_cast<SettingsOf>(below(kSettingsOf.size())); }
  template <class T>
  requires requires(T& nested, RandomFields& fields) { nested.visit(fields); }
  void fill(T& nested) { nested.visit(*this); }
  void fill(Summary& summary) {
    summary.hash = engine_();
    fill(summary.norm);
    summary.sketch.resize(below(2) == 0 ? 0 : kSketch);
    for (auto& value : summary.sketch) fill(value);
  }

  std::mt19937_64 engine_;
};

template <std::size_t... I>
Payload payload_of_kind(std::size_t kind, std::index_sequence<I...>) {
  Payload payload;
  ((kind == I ? void(payload.emplace<I>()) : void()), ...);
  return payload;
}

constexpr std::size_t kKinds = std::variant_size_v<Payload>;

inline Payload random_payload(std::size_t kind, RandomFields& fields) {
  auto payload = payload_of_kind(kind, std::make_index_sequence<kKinds>{});
  std::visit([&](auto& event) { event.visit(fields); }, payload);
  return payload;
}

// Every field with its name; doubles by their bits, so that NaN equals itself and -0 is not 0.
class Text {
 public:
  template <class T>
  void operator()(const char* name, T& value) {
    text += std::string(" ") + name + "=";
    add(value);
  }
  std::string text;

 private:
  void add(std::int64_t value) { text += std::to_string(value); }
  void add(std::uint64_t value) { text += std::to_string(value); }
  void add(bool value) { text += value ? "true" : "false"; }
  void add(double value) { text += std::to_string(std::bit_cast<std::uint64_t>(value)); }
  void add(const std::string& value) { text += std::to_string(value.size()) + ":" + value; }
  template <class T>
  void add(std::vector<T>& list) {
    text += "[" + std::to_string(list.size());
    for (auto& item : list) text += ",", add(item);
    text += "]";
  }
  void add(Ids& ids) {
    auto list = ids.list();
    add(list);
  }
  void add(SettingsOf of) { text += to_string(of); }
  template <class T>
  requires requires(T& nested, Text& fields) { nested.visit(fields); }
  void add(T& nested) { nested.visit(*this); }
};

inline std::string text_of(const SharedPayload& payload) {
  Text text;
  payload.visit([&](auto event) { text.text = event.kName, event.visit(text); });
  return text.text;
}

}  // namespace lockstep::trace::test
