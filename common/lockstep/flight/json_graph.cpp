#include <lockstep/archive/utf8.h>
#include <lockstep/base/error.h>
#include <lockstep/flight/json_graph.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

namespace lockstep::flight {
namespace {

using namespace archive::unpickling;
using nlohmann::json;

// nlohmann/json calls these as it reads. A tree of json values would take ten times the text.
class Builder : public json::json_sax_t {
 public:
  explicit Builder(std::size_t bytes) : objects(bytes) {}

  bool null() override { return add(std::monostate{}); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(std::int64_t{value}); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > std::uint64_t{std::numeric_limits<std::int64_t>::max()})
      throw Error("the integer " + std::to_string(value) + " does not fit 64 bits with a sign");
    return add(static_cast<std::int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return place(text(value)); }
  bool binary(binary_t&) override { return false; }  // no part of JSON's text
  bool start_object(std::size_t) override { return open(Dict{}); }
  bool start_array(std::size_t) override { return open(List{}); }
  bool key(string_t& value) override {
    open_.back().key = text(value);
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string& last, const json::exception&) override {
    throw Error("no whole JSON: what follows " + archive::printable(last.substr(0, 40)) +
                " at byte " + std::to_string(position) + " is not what must follow it");
  }

  Objects objects;
  Ref root = 0;

 private:
  struct Open {
    Ref container;
    Ref key = 0;
  };

  Ref text(const std::string& value) {
    const auto [found, is_new] = texts_.try_emplace(value, 0);
    if (is_new) {
      objects.charge(2 * value.size() + 64);
      found->second = objects.add(value);
    }
    return found->second;
  }
  bool add(Object object) { return place(objects.add(std::move(object))); }
  bool place(Ref ref) {
    if (open_.empty()) {
      root = ref;
    } else if (auto* list = std::get_if<List>(&objects[open_.back().container])) {
      list->items.push_back(ref);
    } else {
      std::get<Dict>(objects[open_.back().container]).entries.emplace_back(open_.back().key, ref);
    }
    return true;
  }
  bool open(Object container) {
    const auto ref = objects.add(std::move(container));
    place(ref);
    open_.push_back({ref});
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::vector<Open> open_;
  std::unordered_map<std::string, Ref> texts_;
};

}  // namespace

Graph json_graph(std::string_view text) {
  Builder builder(text.size());
  json::sax_parse(text, &builder);
  return {std::move(builder.objects), builder.root};
}

}  // namespace lockstep::flight
