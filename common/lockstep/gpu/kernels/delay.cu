#include <lockstep/gpu/kernels/check.h>
#include <lockstep/gpu/kernels/delay.h>

namespace lockstep::gpu {
namespace {

__device__ unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// No GPU's clock is faster than 4 GHz: the bound in its ticks ends this where the timer should stop.
__global__ void wait(unsigned long long time) {
  const auto begin = nanoseconds();
  const auto first_tick = clock64();
  while (nanoseconds() - begin < time &&
         static_cast<unsigned long long>(clock64() - first_tick) < 4 * time)
    __nanosleep(1000);
}

}  // namespace

void delay(std::chrono::nanoseconds time, cudaStream_t stream) {
  if (time.count() < 0 || time > kLongestDelay)
    throw UsageError("a delay of " + std::to_string(time.count()) +
                     " ns: it must be from 0 to 10 seconds");
  wait<<<1, 1, 0, stream>>>(static_cast<unsigned long long>(time.count()));
  check(cudaGetLastError(), "the delay kernel");
}

}  // namespace lockstep::gpu
