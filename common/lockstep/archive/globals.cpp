// The names a checkpoint may mention, and what each does. Nothing here runs code of the file's.
#include <lockstep/archive/objects.h>
#include <lockstep/archive/utf8.h>
#include <lockstep/base/error.h>

#include <algorithm>
#include <limits>

namespace lockstep::archive::unpickling {
namespace {

constexpr std::size_t kMostDimensions = 64;
constexpr std::size_t kLongestName = 4096;

// Arguments of a call, each asked for by the kind that must be there.
class Arguments {
 public:
  Arguments(const Objects& objects, Ref tuple, std::string what)
      : objects_(objects), what_(std::move(what)) {
    const auto* arguments = std::get_if<Tuple>(&objects[tuple]);
    if (arguments == nullptr) fail(std::string("is given ") + kind(objects[tuple]));
    items_ = &arguments->items;
  }

  std::size_t count() const { return items_->size(); }
  Ref ref(std::size_t i) const { return items_->at(i); }
  void expect_count(std::size_t least, std::size_t most) const {
    if (count() < least || count() > most)
      fail("is given " + std::to_string(count()) + " arguments");
  }

  template <class T>
  const T& get(std::size_t i) const {
    if (const auto* value = std::get_if<T>(&objects_[ref(i)])) return *value;
    fail("is given " + std::string(kind(objects_[ref(i)])) + " as argument " +
         std::to_string(i + 1));
  }
  std::vector<std::int64_t> integers(std::size_t i) const {
    std::vector<std::int64_t> values;
    const auto& refs = get<Tuple>(i).items;
    if (refs.size() > kMostDimensions)
      fail("is given " + std::to_string(refs.size()) + " dimensions; " +
           std::to_string(kMostDimensions) + " at most");
    for (const auto item : refs) {
      const auto* value = std::get_if<std::int64_t>(&objects_[item]);
      if (value == nullptr) fail(std::string("is given ") + kind(objects_[item]) + " as a size");
      values.push_back(*value);
    }
    return values;
  }
  // Hooks are functions, and metadata marks conjugated or otherwise unusual tensors.
  void expect_nothing(std::size_t i, const char* name) const {
    const auto& object = objects_[ref(i)];
    const auto* dict = std::get_if<Dict>(&object);
    if (!std::holds_alternative<std::monostate>(object) && !(dict && dict->entries.empty()))
      fail(std::string("is given ") + name + ", which is not supported");
  }
  [[noreturn]] void fail(const std::string& problem) const { throw Error(what_ + " " + problem); }

 private:
  const Objects& objects_;
  std::string what_;
  const std::vector<Ref>* items_ = nullptr;
};

bool add(std::int64_t& sum, std::int64_t count, std::int64_t each) {
  std::int64_t product = 0;
  return !__builtin_mul_overflow(count, each, &product) &&
         !__builtin_add_overflow(sum, product, &sum);
}

std::string text(const std::vector<std::int64_t>& values) {
  std::string result = "(";
  for (const auto value : values) result += std::to_string(value) + ",";
  return result + ")";
}

// Throws unless every element lies inside the storage.
void check(TensorInFile& tensor, const Arguments& arguments) {
  const auto problem = [&](const std::string& what) {
    arguments.fail("describes a tensor of sizes " + text(tensor.sizes) + ", strides " +
                   text(tensor.strides) + ", offset " + std::to_string(tensor.offset) +
                   " in storage \"" + printable(tensor.storage.key) + "\" of " +
                   std::to_string(tensor.storage.bytes) + " bytes of " +
                   std::string(name(tensor.dtype)) + ": " + what);
  };
  const auto negative = [](std::int64_t value) { return value < 0; };
  if (tensor.sizes.size() != tensor.strides.size()) problem("not a stride for each size");
  if (tensor.offset < 0 || std::any_of(tensor.sizes.begin(), tensor.sizes.end(), negative) ||
      std::any_of(tensor.strides.begin(), tensor.strides.end(), negative))
    problem("a number is negative");
  std::int64_t elements = 1;
  for (const auto size : tensor.sizes)
    if (size != 0 && __builtin_mul_overflow(elements, size, &elements)) problem("too large");
  if (std::find(tensor.sizes.begin(), tensor.sizes.end(), 0) != tensor.sizes.end()) {
    tensor.offset = 0;  // Nothing is read through it. A slice beyond the end has one out of range.
    return;
  }
  std::int64_t last = tensor.offset;
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i)
    if (!add(last, tensor.sizes[i] - 1, tensor.strides[i])) problem("too large");
  if (last >= tensor.storage.bytes / item_size(tensor.dtype)) problem("reaches beyond the storage");
}

Ref rebuild_tensor(Objects& objects, const Arguments& arguments, bool v3) {
  const std::size_t required = v3 ? 7 : 6;
  arguments.expect_count(required, required + 1);
  const auto& storage = arguments.get<StorageObject>(0);
  TensorInFile tensor;
  tensor.storage = *storage.storage;
  if (v3) {
    const auto& global = arguments.get<Global>(6);
    if (global.what != Global::What::kDtype) arguments.fail("is given no dtype");
    tensor.dtype = global.dtype;
  } else if (storage.dtype) {
    tensor.dtype = *storage.dtype;
  } else {
    arguments.fail("is given a storage without a type");
  }
  tensor.offset = arguments.get<std::int64_t>(1);
  tensor.sizes = arguments.integers(2);
  tensor.strides = arguments.integers(3);
  tensor.requires_grad = arguments.get<bool>(4);
  arguments.expect_nothing(5, "hooks");
  if (arguments.count() > required) arguments.expect_nothing(required, "metadata");
  check(tensor, arguments);
  objects.charge(sizeof tensor + 16 * tensor.sizes.size() + tensor.storage.key.size() +
                 tensor.storage.location.size());
  return objects.add(std::make_shared<const TensorInFile>(std::move(tensor)));
}

Ref rebuild_parameter(Objects& objects, const Arguments& arguments) {
  arguments.expect_count(3, 3);
  auto tensor = *arguments.get<std::shared_ptr<const TensorInFile>>(0);
  tensor.is_parameter = true;
  tensor.requires_grad = arguments.get<bool>(1);
  arguments.expect_nothing(2, "hooks");
  objects.charge(sizeof tensor + 16 * tensor.sizes.size() + tensor.storage.key.size() +
                 tensor.storage.location.size());
  return objects.add(std::make_shared<const TensorInFile>(std::move(tensor)));
}

}  // namespace

Global find_global(std::string_view module, std::string_view name) {
  using What = Global::What;
  if (module == "collections" && name == "OrderedDict") return {What::kOrderedDict};
  if (module == "collections" && name == "Counter") return {What::kCounter};
  if (module == "torch._utils" && name == "_rebuild_tensor_v2") return {What::kRebuildTensorV2};
  if (module == "torch._utils" && name == "_rebuild_tensor_v3") return {What::kRebuildTensorV3};
  if (module == "torch._utils" && name == "_rebuild_parameter") return {What::kRebuildParameter};
  if (module == "torch.storage" && name == "UntypedStorage") return {What::kUntypedStorage};
  if (module == "torch") {
    if (name == "Size") return {What::kSize};
    if (const auto dtype = dtype_of_storage_class(name)) return {What::kStorageClass, *dtype};
    if (const auto dtype = dtype_of_name(name)) return {What::kDtype, *dtype};
  }
  throw Error("the file asks for " + printable(module) + "." + printable(name) +
              ", which is not one of the names that a checkpoint may hold; refused. Do not load it "
              "elsewhere unless you trust its source. Save state_dict()s, not objects.");
}

Ref call(Objects& objects, Ref function, Ref tuple) {
  using What = Global::What;
  const auto* global = std::get_if<Global>(&objects[function]);
  if (global == nullptr)
    throw Error(std::string("the file calls ") + kind(objects[function]) + "; refused");
  const auto arguments = [&](const char* name) { return Arguments(objects, tuple, name); };
  switch (global->what) {
    case What::kOrderedDict:
      arguments("collections.OrderedDict").expect_count(0, 0);
      return objects.add(Dict{});
    case What::kCounter: {
      const auto given = arguments("collections.Counter");
      given.expect_count(0, 1);
      if (given.count() == 0) return objects.add(Dict{});
      given.get<Dict>(0);
      return given.ref(0);
    }
    case What::kSize: {
      const auto given = arguments("torch.Size");
      given.expect_count(1, 1);
      given.get<Tuple>(0);
      return given.ref(0);
    }
    case What::kRebuildTensorV2:
      return rebuild_tensor(objects, arguments("_rebuild_tensor_v2"), false);
    case What::kRebuildTensorV3:
      return rebuild_tensor(objects, arguments("_rebuild_tensor_v3"), true);
    case What::kRebuildParameter:
      return rebuild_parameter(objects, arguments("_rebuild_parameter"));
    case What::kStorageClass:
    case What::kUntypedStorage:
    case What::kDtype:
      break;
  }
  throw Error("the file calls a storage class or a dtype; refused");
}

StorageObject storage_of(const Objects& objects, Ref id) {
  const Arguments arguments(objects, id, "a persistent id");
  arguments.expect_count(5, 5);
  if (arguments.get<std::string>(0) != "storage") arguments.fail("is not of a storage");
  const auto& global = arguments.get<Global>(1);
  StorageObject result;
  if (global.what == Global::What::kStorageClass) {
    result.dtype = global.dtype;
  } else if (global.what != Global::What::kUntypedStorage) {
    arguments.fail("names no storage class");
  }
  Storage storage;
  storage.key = arguments.get<std::string>(2);
  storage.location = arguments.get<std::string>(3);
  if (storage.key.size() > kLongestName || storage.location.size() > kLongestName)
    arguments.fail("has a name of more than " + std::to_string(kLongestName) + " bytes");
  const auto elements = arguments.get<std::int64_t>(4);
  const auto size = result.dtype ? item_size(*result.dtype) : 1;
  if (elements < 0 || __builtin_mul_overflow(elements, size, &storage.bytes))
    arguments.fail("is of a storage of " + std::to_string(elements) + " elements");
  result.storage = std::make_shared<const Storage>(std::move(storage));
  return result;
}

}  // namespace lockstep::archive::unpickling
