// What Python's state_dict() returns, as a C++ value: None, bool, int, float, str, list, tuple, dict
// and tensor. State dicts make values, checkpoint files hold them.
#pragma once

#include <lockstep/base/error.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep {

// A dict's key: a str, or an int (an optimizer's state is keyed by the parameter's index).
class Key {
 public:
  Key(std::string text) : key_(std::move(text)) {}
  Key(std::string_view text) : key_(std::string(text)) {}
  Key(const char* text) : key_(std::string(text)) {}
  Key(std::integral auto number) : key_(static_cast<std::int64_t>(number)) {}

  bool is_string() const { return key_.index() == 0; }
  const std::string& as_string() const { return std::get<0>(key_); }  // only where is_string()
  std::int64_t as_int() const { return std::get<1>(key_); }           // only where not
  std::string text() const { return is_string() ? as_string() : std::to_string(as_int()); }

  bool operator==(const Key&) const = default;
  struct Hash {
    std::size_t operator()(const Key& key) const { return std::hash<decltype(key_)>{}(key.key_); }
  };

 private:
  std::variant<std::string, std::int64_t> key_;
};

// Entries in the order they were added, as in Python, found by key in constant time.
// `Value` may be a type not yet complete, so that values can hold dicts of values.
template <class Value>
class DictOf {
 public:
  using Entry = std::pair<Key, Value>;

  DictOf() = default;
  DictOf(std::initializer_list<Entry> entries) {
    for (const auto& [key, value] : entries) (*this)[key] = value;
  }

  std::size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }
  std::vector<std::string> keys() const {  // as text
    std::vector<std::string> keys;
    for (const auto& [key, value] : entries_) keys.push_back(key.text());
    return keys;
  }

  bool contains(const Key& key) const { return places_.contains(key); }
  // The entry's value; null where there is none.
  const Value* find(const Key& key) const {
    const auto place = places_.find(key);
    return place == places_.end() ? nullptr : &entries_[place->second].second;
  }
  const Value& at(const Key& key) const {
    if (const auto* value = find(key)) return *value;
    std::string there;
    for (std::size_t i = 0; i < std::min<std::size_t>(entries_.size(), 10); ++i)
      there += (i == 0 ? "" : ", ") + entries_[i].first.text();
    throw Error("there is no entry \"" + key.text() + "\"; the dict of " + std::to_string(size()) +
                " holds " + (empty() ? "nothing" : there) + (size() > 10 ? ", ..." : ""));
  }
  // The entry's value, added as None where there was none.
  Value& operator[](const Key& key) {
    const auto [place, added] = places_.try_emplace(key, entries_.size());
    if (added) entries_.emplace_back(key, Value());
    return entries_[place->second].second;
  }

  bool operator==(const DictOf& other) const { return entries_ == other.entries_; }

 private:
  std::vector<Entry> entries_;
  std::unordered_map<Key, std::size_t, Key::Hash> places_;
};

// The tensor's type is open, so that what knows no torch (the file format) can hold values too.
// Value, in train/value.h, is the one with at::Tensor.
template <class Tensor>
class ValueOf {
 public:
  using List = std::vector<ValueOf>;
  struct Tuple {
    List items;
    bool operator==(const Tuple&) const = default;
  };
  using Dict = DictOf<ValueOf>;

  ValueOf() = default;  // None
  ValueOf(std::same_as<bool> auto value) : value_(value) {}
  template <std::integral Int>
  requires(!std::same_as<Int, bool>) ValueOf(Int value)
      : value_(static_cast<std::int64_t>(value)) {}
  ValueOf(double value) : value_(value) {}
  ValueOf(std::string value) : value_(std::move(value)) {}
  ValueOf(const char* value) : value_(std::string(value)) {}
  ValueOf(List value) : value_(std::move(value)) {}
  ValueOf(Tuple value) : value_(std::move(value)) {}
  ValueOf(Dict value) : value_(std::move(value)) {}
  ValueOf(Tensor value) : value_(std::move(value)) {}

  bool is_none() const { return is<std::monostate>(); }
  bool is_bool() const { return is<bool>(); }
  bool is_int() const { return is<std::int64_t>(); }
  bool is_double() const { return is<double>(); }
  bool is_string() const { return is<std::string>(); }
  bool is_list() const { return is<List>(); }
  bool is_tuple() const { return is<Tuple>(); }
  bool is_dict() const { return is<Dict>(); }
  bool is_tensor() const { return is<Tensor>(); }

  // Each throws Error, naming the kind that is there, where the value is of another kind. Of a value
  // about to go they give copies: `for (... : state_dict(*net).as_dict())` is sound.
  bool as_bool() const { return as<bool>("a bool"); }
  std::int64_t as_int() const { return as<std::int64_t>("an int"); }
  double as_double() const {  // an int is a number too, as in Python: lr=1
    return is_int() ? static_cast<double>(as_int()) : as<double>("a float");
  }
  const std::string& as_string() const& { return as<std::string>("a str"); }
  std::string as_string() && { return as<std::string>("a str"); }
  const List& as_list() const& {  // of a list or a tuple
    return is_tuple() ? std::get<Tuple>(value_).items : as<List>("a list");
  }
  List as_list() && { return std::as_const(*this).as_list(); }
  const Dict& as_dict() const& { return as<Dict>("a dict"); }
  Dict& as_dict() & { return const_cast<Dict&>(as<Dict>("a dict")); }
  Dict as_dict() && { return as<Dict>("a dict"); }
  const Tensor& as_tensor() const& { return as<Tensor>("a tensor"); }
  Tensor as_tensor() && { return as<Tensor>("a tensor"); }

  // The entry of a dict. Throws Error where this is no dict or has no such key.
  const ValueOf& at(const Key& key) const& { return as_dict().at(key); }
  ValueOf at(const Key& key) && { return as<Dict>("a dict").at(key); }

  // Python's name of the kind: "NoneType", "int", "dict", ...
  const char* kind() const {
    static constexpr std::array<const char*, 9> kNames = {
        "NoneType", "bool", "int", "float", "str", "list", "tuple", "dict", "Tensor"};
    return kNames[value_.index()];
  }

  // Where tensors have an == that says yes or no. at::Tensor's gives a tensor.
  bool operator==(const ValueOf& other) const requires std::convertible_to<
      decltype(std::declval<const Tensor&>() == std::declval<const Tensor&>()), bool> {
    return value_ == other.value_;
  }

 private:
  template <class T>
  bool is() const {
    return std::holds_alternative<T>(value_);
  }
  template <class T>
  const T& as(const char* wanted) const {
    if (const T* value = std::get_if<T>(&value_)) return *value;
    throw Error(std::string("expected ") + wanted + ", found a value of kind " + kind());
  }

  std::variant<std::monostate, bool, std::int64_t, double, std::string, List, Tuple, Dict, Tensor>
      value_;
};

}  // namespace lockstep
