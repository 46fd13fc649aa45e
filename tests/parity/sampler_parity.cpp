// Reads one sampler's options a line (dataset_size num_replicas seed epoch shuffle drop_last) and
// writes the indices of its ranks 0, 1, ... as little-endian int64, each rank's behind their
// number. sampler_parity.py compares them with Python's.
#include <lockstep/launch/guarded.h>
#include <lockstep/train/distributed_sampler.h>

#include <exception>
#include <iostream>

namespace {

void write(const std::vector<std::int64_t>& values) {
  std::cout.write(reinterpret_cast<const char*>(values.data()),
                  static_cast<std::streamsize>(values.size() * sizeof(values[0])));
}

void answer(lockstep::DistributedSamplerOptions options, std::int64_t epoch) {
  for (options.rank = 0; options.rank < options.num_replicas; ++options.rank) {
    lockstep::DistributedSampler sampler(options);
    sampler.set_epoch(epoch);
    write({sampler.size()});
    write(sampler.indices());
  }
}

}  // namespace

int main() {
  return lockstep::launch::guarded([&] {
    lockstep::DistributedSamplerOptions options;
    std::int64_t epoch = 0;
    while (std::cin >> options.dataset_size >> options.num_replicas >> options.seed >> epoch >>
           options.shuffle >> options.drop_last)
      answer(options, epoch);
    return std::cin.eof() ? lockstep::kOk : lockstep::kUsage;
  });
}
