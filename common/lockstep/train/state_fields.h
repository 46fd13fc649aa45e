// An object's fields to and from a state_dict, each listed once:
//
//   void visit(StateFields& f) { f("gamma", gamma_); f("step_size", step_size_); }
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/train/value.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep {

class StateFields {
 public:
  explicit StateFields(Value::Dict* into) : into_(into) {}         // writes every field
  explicit StateFields(const Value::Dict& from) : from_(&from) {}  // reads those that are there

  // Throws Error naming the field where the state holds another kind of value.
  template <class T>
  void operator()(const char* name, T& value) {
    if (into_ != nullptr) {
      (*into_)[name] = to_value(value);
    } else if (const auto* found = from_->find(name)) {
      try {
        from_value(*found, value);
      } catch (const Error& error) {
        throw Error(std::string("\"") + name + "\" of a state_dict: " + error.what());
      }
    }
  }

 private:
  static Value to_value(bool value) { return value; }
  static Value to_value(std::int64_t value) { return value; }
  static Value to_value(double value) { return value; }
  static Value to_value(const std::string& value) { return value; }
  template <class T>
  static Value to_value(std::vector<T>& list) {
    Value::List values;
    for (auto& item : list) values.push_back(to_value(item));
    return values;
  }
  static Value to_value(const std::map<std::int64_t, std::int64_t>& counts) {
    Value::Dict values;
    for (const auto& [key, count] : counts) values[key] = count;
    return values;
  }
  template <class T>
  requires requires(T& object, StateFields& fields) { object.visit(fields); }
  static Value to_value(T& object) {
    Value::Dict values;
    StateFields fields(&values);
    object.visit(fields);
    return values;
  }

  static void from_value(const Value& from, bool& value) { value = from.as_bool(); }
  static void from_value(const Value& from, std::int64_t& value) { value = from.as_int(); }
  static void from_value(const Value& from, double& value) { value = from.as_double(); }
  static void from_value(const Value& from, std::string& value) { value = from.as_string(); }
  template <class T>
  static void from_value(const Value& from, std::vector<T>& list) {
    std::vector<T> read(from.as_list().size());
    for (std::size_t i = 0; i < read.size(); ++i) from_value(from.as_list()[i], read[i]);
    list = std::move(read);
  }
  static void from_value(const Value& from, std::map<std::int64_t, std::int64_t>& counts) {
    std::map<std::int64_t, std::int64_t> read;
    for (const auto& [key, count] : from.as_dict()) {
      if (key.is_string()) throw Error("expected int keys, found \"" + key.as_string() + "\"");
      read[key.as_int()] = count.as_int();
    }
    counts = std::move(read);
  }
  template <class T>
  requires requires(T& object, StateFields& fields) { object.visit(fields); }
  static void from_value(const Value& from, T& object) {
    StateFields fields(from.as_dict());
    object.visit(fields);
  }

  Value::Dict* into_ = nullptr;
  const Value::Dict* from_ = nullptr;
};

}  // namespace lockstep
