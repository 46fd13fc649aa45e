#include <lockstep/base/error.h>
#include <lockstep/gpu/kernels/bucket_plan.h>

#include <string>

namespace lockstep::gpu {

std::vector<Table> plan(const std::vector<std::uint64_t>& tensors,
                        const std::vector<std::int64_t>& sizes) {
  if (tensors.size() != sizes.size())
    throw UsageError(std::to_string(tensors.size()) + " tensors and " +
                     std::to_string(sizes.size()) + " sizes");
  std::vector<Table> tables;
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (sizes[i] < 0)
      throw UsageError("tensor " + std::to_string(i) + " has the size " + std::to_string(sizes[i]));
    if (sizes[i] == 0) continue;
    if (tables.empty() || tables.back().spans == kTensorsPerLaunch) tables.emplace_back();
    auto& table = tables.back();
    table.span[table.spans] = {tensors[i], offset, sizes[i]};
    table.first_chunk[table.spans] = table.chunks;
    ++table.spans;
    table.chunks += (sizes[i] + kChunk - 1) / kChunk;
    offset += sizes[i];
  }
  return tables;
}

}  // namespace lockstep::gpu
