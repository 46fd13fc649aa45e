#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <lockstep/record/readable.h>

#include <algorithm>

namespace lockstep::record {
namespace {

constexpr std::int64_t kMostNumbers = std::int64_t{1} << 28;

bool stands_for_others(const at::Tensor& tensor) {
  static const c10::DispatchKeySet kKeys{
      c10::DispatchKey::Python, c10::DispatchKey::FuncTorchBatched,
      c10::DispatchKey::BatchedNestedTensor, c10::DispatchKey::FuncTorchGradWrapper,
      c10::DispatchKey::Functionalize};
  return tensor.key_set().has_any(kKeys) || tensor.is_nested() ||
         tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

bool is_converted(at::ScalarType type) {
  const bool is_packed =
      type == at::kFloat4_e2m1fn_x2 || type == at::kQUInt4x2 || type == at::kQUInt2x4;
  return !is_packed && (at::isFloatingType(type) || at::isComplexType(type) ||
                        at::isIntegralType(type, /*includeBool=*/true) || at::isQIntType(type));
}

bool is_any_sparse(at::Layout layout) {
  return layout == at::kSparse || layout == at::kSparseCsr || layout == at::kSparseCsc ||
         layout == at::kSparseBsr || layout == at::kSparseBsc;
}

std::size_t needed_bytes(const at::Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                          static_cast<std::size_t>(tensor.storage_offset()));
}

}  // namespace

bool is_readable(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta() || stands_for_others(tensor)) return false;
  if (!is_converted(tensor.scalar_type())) return false;
  if (is_any_sparse(tensor.layout())) return tensor.numel() <= kMostNumbers;
  if (tensor.layout() != at::kStrided) return tensor.layout() == at::kMkldnn;
  if (tensor.numel() == 0) return true;
  if (!tensor.has_storage()) return false;
  const auto bytes = tensor.storage().nbytes();
  if (needed_bytes(tensor) > bytes || tensor.storage().data() == nullptr) return false;
  return tensor.numel() <=
         std::max(kMostNumbers, static_cast<std::int64_t>(bytes / tensor.itemsize()));
}

at::Tensor without_repeats(const at::Tensor& tensor, std::int64_t first_dimension) {
  auto once = tensor;
  if (tensor.layout() != at::kStrided) return once;
  for (std::int64_t i = first_dimension; i < tensor.dim(); ++i)
    if (tensor.stride(i) == 0 && tensor.size(i) > 1) once = once.narrow(i, 0, 1);
  return once;
}

}  // namespace lockstep::record
