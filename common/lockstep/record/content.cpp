#include <lockstep/base/error.h>
#include <lockstep/base/hash.h>
#include <lockstep/record/content.h>

namespace lockstep::record {

Content hash_content(const at::Tensor& inputs, const at::Tensor& targets,
                     const std::vector<std::int64_t>& ids) {
  const auto count = static_cast<std::int64_t>(ids.size());
  if (inputs.size(0) != count || targets.size(0) != count)
    throw Error("a data set of " + std::to_string(inputs.size(0)) + " inputs and " +
                std::to_string(targets.size(0)) + " targets cannot have " + std::to_string(count) +
                " ids");
  const auto x = inputs.detach().to(at::kCPU).contiguous(),
             y = targets.detach().to(at::kCPU).contiguous();
  const auto* x_bytes = static_cast<const char*>(x.const_data_ptr());
  const auto* y_bytes = static_cast<const char*>(y.const_data_ptr());
  const std::size_t x_row = count == 0 ? 0 : x.nbytes() / ids.size(),
                    y_row = count == 0 ? 0 : y.nbytes() / ids.size();
  Content content;
  content.ids_in_order = hash_bytes(ids.data(), ids.size() * sizeof(std::int64_t));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto id = hash_bytes(&ids[i], sizeof ids[i]);
    content.ids_as_set += id;
    content.content_as_set +=
        hash_bytes(y_bytes + i * y_row, y_row, hash_bytes(x_bytes + i * x_row, x_row, id));
  }
  return content;
}

}  // namespace lockstep::record
