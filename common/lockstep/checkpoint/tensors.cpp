#include <lockstep/base/error.h>
#include <lockstep/checkpoint/tensors.h>
#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <utility>

namespace lockstep::checkpoint {
namespace {

using archive::Dtype;
using archive::FileValue;
using archive::TensorInFile;

constexpr std::array<std::pair<at::ScalarType, Dtype>, 19> kDtypes = {
    {{at::kDouble, Dtype::kFloat64},
     {at::kFloat, Dtype::kFloat32},
     {at::kHalf, Dtype::kFloat16},
     {at::kBFloat16, Dtype::kBfloat16},
     {at::kLong, Dtype::kInt64},
     {at::kInt, Dtype::kInt32},
     {at::kShort, Dtype::kInt16},
     {at::kChar, Dtype::kInt8},
     {at::kByte, Dtype::kUint8},
     {at::kBool, Dtype::kBool},
     {at::kComplexFloat, Dtype::kComplex64},
     {at::kComplexDouble, Dtype::kComplex128},
     {at::kUInt16, Dtype::kUint16},
     {at::kUInt32, Dtype::kUint32},
     {at::kUInt64, Dtype::kUint64},
     {at::kFloat8_e4m3fn, Dtype::kFloat8E4m3fn},
     {at::kFloat8_e5m2, Dtype::kFloat8E5m2},
     {at::kFloat8_e4m3fnuz, Dtype::kFloat8E4m3fnuz},
     {at::kFloat8_e5m2fnuz, Dtype::kFloat8E5m2fnuz}}};

std::optional<Dtype> dtype_of(at::ScalarType type) {
  for (const auto& [torchs, files] : kDtypes)
    if (torchs == type) return files;
  return std::nullopt;
}

at::ScalarType scalar_type_of(Dtype dtype) {
  for (const auto& [torchs, files] : kDtypes)
    if (files == dtype) return torchs;
  throw Error("no torch type for " + std::string(archive::name(dtype)));
}

// The same value with each tensor replaced by map(tensor, path).
template <class To, class From, class Map>
ValueOf<To> map_tensors(const ValueOf<From>& value, const std::string& path, const Map& map) {
  const auto below = [&](const std::string& name) {
    return path.empty() ? name : path + "." + name;
  };
  const auto items = [&] {
    typename ValueOf<To>::List list;
    for (std::size_t i = 0; i < value.as_list().size(); ++i)
      list.push_back(map_tensors<To>(value.as_list()[i], below(std::to_string(i)), map));
    return list;
  };
  if (value.is_tensor()) return map(value.as_tensor(), path);
  if (value.is_list()) return items();
  if (value.is_tuple()) return typename ValueOf<To>::Tuple{items()};
  if (value.is_dict()) {
    typename ValueOf<To>::Dict dict;
    for (const auto& [key, item] : value.as_dict())
      dict[key] = map_tensors<To>(item, below(key.text()), map);
    return dict;
  }
  if (value.is_bool()) return value.as_bool();
  if (value.is_int()) return value.as_int();
  if (value.is_double()) return value.as_double();
  if (value.is_string()) return value.as_string();
  return {};
}

// A storage's memory as bytes.
at::Tensor bytes_of(const at::Storage& storage, std::int64_t size) {
  return at::empty({0}, at::TensorOptions(at::kByte).device(storage.device()))
      .set_(storage, 0, {size}, {1});
}

}  // namespace

FileValue Storages::describe(const Value& value) {
  return map_tensors<TensorInFile>(
      value, "",
      [this](const at::Tensor& tensor, const std::string& path) { return describe(tensor, path); });
}

TensorInFile Storages::describe(at::Tensor tensor, const std::string& path) {
  const auto refuse = [&](const std::string& what) {
    throw Error((path.empty() ? "the tensor" : path) + " " + what);
  };
  if (!tensor.defined()) refuse("is an undefined tensor; leave it out, or save None");
  if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta() ||
      !tensor.has_storage())
    refuse("is a " + tensor.toString() + " tensor; only plain dense ones can be saved");
  const auto dtype = dtype_of(tensor.scalar_type());
  if (!dtype)
    refuse(std::string("has the type ") + at::toString(tensor.scalar_type()) +
           ", which a file cannot hold");
  tensor = tensor.resolve_conj().resolve_neg();  // views that only pretend; files hold real values

  const auto [place, is_new] =
      places_.try_emplace(tensor.storage().unsafeGetStorageImpl(), entries_.size());
  if (is_new) {
    const auto item = archive::item_size(*dtype);
    const auto bytes = static_cast<std::int64_t>(tensor.storage().nbytes()) / item * item;
    entries_.push_back({tensor,
                        {std::to_string(entries_.size()),
                         location_ ? *location_ : tensor.storage().device().str(), bytes},
                        *dtype});
  }
  const auto& entry = entries_[place->second];
  if (entry.dtype != *dtype)
    refuse("shares memory with a tensor of another type (" +
           std::string(archive::name(entry.dtype)) + ", this one " +
           std::string(archive::name(*dtype)) + "); torch's files cannot say so. Clone one");
  TensorInFile described;
  described.storage = entry.storage;
  described.dtype = *dtype;
  described.offset = tensor.storage_offset();
  described.sizes = tensor.sizes().vec();
  described.strides = tensor.strides().vec();
  described.requires_grad = tensor.requires_grad();
  return described;
}

void Storages::for_each(
    const std::function<void(const archive::Storage&, const at::Tensor& bytes)>& visit) const {
  for (const auto& entry : entries_)
    visit(entry.storage, bytes_of(entry.of.storage(), entry.storage.bytes));
}

Value attach(const archive::FileValue& value, const ReadStorage& read,
             const MapLocation& map_location, std::map<std::string, std::string>* locations) {
  std::unordered_map<std::string, at::Storage> storages;
  const auto storage_of = [&](const archive::Storage& storage) {
    const auto found = storages.find(storage.key);
    if (found != storages.end()) return found->second;
    const auto device = map_location(storage.location);
    auto bytes = at::empty({storage.bytes}, at::kByte);
    read(storage, bytes.mutable_data_ptr());
    bytes = bytes.to(device);
    return storages.emplace(storage.key, bytes.storage()).first->second;
  };
  const auto make = [&](const TensorInFile& described, const std::string& path) {
    try {
      if (locations) locations->emplace(path, described.storage.location);
      const auto storage = storage_of(described.storage);
      const auto options =
          at::TensorOptions(scalar_type_of(described.dtype)).device(storage.device());
      auto tensor = at::empty({0}, options)
                        .set_(storage, described.offset, described.sizes, described.strides);
      return tensor.set_requires_grad(described.requires_grad);
    } catch (const Error& error) {
      throw Error(path + ": " + error.what());
    } catch (const c10::Error& error) {
      throw Error(path + ": " + error.what_without_backtrace());
    }
  };
  return map_tensors<at::Tensor>(value, "", make);
}

}  // namespace lockstep::checkpoint
