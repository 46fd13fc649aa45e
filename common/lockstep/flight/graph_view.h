// What a file's objects are, each asked for by the kind that must be there. Throws Error that names
// the kind found.
#pragma once

#include <lockstep/archive/objects.h>
#include <lockstep/base/error.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::flight {

class GraphView {
 public:
  using Ref = archive::unpickling::Ref;

  explicit GraphView(archive::unpickling::Graph graph) : graph_(std::move(graph)) {}

  Ref root() const { return graph_.root; }
  // `what` begins the message: "state".
  const archive::unpickling::Dict& dict(Ref ref, const char* what) const {
    return get<archive::unpickling::Dict>(ref, what, "a dict");
  }
  const std::string& text(Ref ref, const char* what) const {
    return get<std::string>(ref, what, "a text");
  }
  std::int64_t integer(Ref ref, const char* what) const {
    return get<std::int64_t>(ref, what, "an integer");
  }
  bool flag(Ref ref, const char* what) const { return get<bool>(ref, what, "a bool"); }
  const std::vector<Ref>& list(Ref ref, const char* what) const {  // or a tuple
    if (const auto* tuple = std::get_if<archive::unpickling::Tuple>(&graph_.objects[ref]))
      return tuple->items;
    return get<archive::unpickling::List>(ref, what, "a list").items;
  }

 private:
  template <class T>
  const T& get(Ref ref, const char* what, const char* wanted) const {
    if (const auto* value = std::get_if<T>(&graph_.objects[ref])) return *value;
    throw Error(std::string(what) + " is " + kind(graph_.objects[ref]) + ", not " + wanted);
  }

  archive::unpickling::Graph graph_;
};

}  // namespace lockstep::flight
