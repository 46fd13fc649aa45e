#include <lockstep/archive/objects.h>
#include <lockstep/base/error.h>

#include <array>

namespace lockstep::archive::unpickling {
namespace {

// What a value takes by the byte of pickle, in Object, on the stack and in what is returned together:
// an int in a list up to 100, a bool 160, an empty tuple 200. The most that pickle() asks for is 266:
// an entry of three bytes, a reference to a name of 255 as the key and None as the value. The rest is
// for what Python writes once and refers to, where this library copies: longer texts, small tuples.
// References to more than that run into the budget, as they must: each multiplies what it refers to.
// The fixed part lets short pickles refer to a long name often.
constexpr std::size_t kFixedBudget = std::size_t{32} << 20;
constexpr std::size_t kBudgetPerByte = 512;

}  // namespace

Objects::Objects(std::size_t pickle_bytes)
    : budget_(kFixedBudget + kBudgetPerByte * pickle_bytes) {}

Ref Objects::add(Object object) {
  charge(sizeof(Object));
  objects_.push_back(std::move(object));
  return static_cast<Ref>(objects_.size() - 1);
}

void Objects::charge(std::size_t bytes) {
  if (bytes > budget_)
    throw Error("unpacks into far more memory than an honest file of its size; refused");
  budget_ -= bytes;
}

FileValue Objects::value(Ref ref, int depth) {
  if (depth > kDeepest)
    throw Error("values are nested more than " + std::to_string(kDeepest) + " deep");
  const auto& object = objects_[ref];
  if (std::holds_alternative<std::monostate>(object)) return {};
  if (const auto* flag = std::get_if<bool>(&object)) return *flag;
  if (const auto* number = std::get_if<std::int64_t>(&object)) return *number;
  if (const auto* number = std::get_if<double>(&object)) return *number;
  if (const auto* text = std::get_if<std::string>(&object)) {
    charge(text->size());
    return *text;
  }
  if (const auto* list = std::get_if<List>(&object)) return values(list->items, depth);
  if (const auto* tuple = std::get_if<Tuple>(&object))
    return FileValue::Tuple{values(tuple->items, depth)};
  if (const auto* dict = std::get_if<Dict>(&object)) {
    FileValue::Dict result;
    for (const auto& [name, item] : dict->entries) {
      charge(sizeof(FileValue) + 3 * sizeof(Key));  // the entry's key, and the index's
      result[key(name)] = value(item, depth + 1);
    }
    return result;
  }
  if (const auto* tensor = std::get_if<std::shared_ptr<const TensorInFile>>(&object)) {
    charge(sizeof(TensorInFile) + 16 * (*tensor)->sizes.size() + (*tensor)->storage.key.size() +
           (*tensor)->storage.location.size());
    return **tensor;
  }
  throw Error(std::string("holds ") + kind(object) + " where a value is expected");
}

std::vector<FileValue> Objects::values(const std::vector<Ref>& items, int depth) {
  charge(items.size() * sizeof(FileValue));
  std::vector<FileValue> result;
  result.reserve(items.size());
  for (const auto item : items) result.push_back(value(item, depth + 1));
  return result;
}

Key Objects::key(Ref ref) {
  if (const auto* text = std::get_if<std::string>(&objects_[ref])) {
    charge(2 * text->size());
    return *text;
  }
  if (const auto* number = std::get_if<std::int64_t>(&objects_[ref])) return *number;
  throw Error(std::string("a dict has ") + kind(objects_[ref]) +
              " as a key; only texts and integers are read");
}

const char* kind(const Object& object) {
  static constexpr std::array<const char*, std::variant_size_v<Object>> kKinds = {
      "None",    "a bool", "an integer", "a float",   "a text",  "a list",
      "a tuple", "a dict", "a global",   "a storage", "a tensor"};
  return kKinds[object.index()];
}

}  // namespace lockstep::archive::unpickling
