#include <lockstep/base/error.h>
#include <lockstep/checkpoint/rng_state.h>
#include <torch/torch.h>

#include <mutex>

namespace lockstep {

at::Tensor get_rng_state() {
  return get_rng_state(at::detail::getDefaultCPUGenerator());
}

at::Tensor get_rng_state(const at::Generator& generator) {
  auto own = generator;
  const std::lock_guard<std::mutex> lock(own.mutex());
  return own.get_state();
}

void set_rng_state(const at::Tensor& state) {
  set_rng_state(at::detail::getDefaultCPUGenerator(), state);
}

void set_rng_state(at::Generator generator, const at::Tensor& state) {
  if (!state.defined() || !state.device().is_cpu() || state.scalar_type() != at::kByte ||
      state.dim() != 1)
    throw Error("a random generator's state is a one-dimensional byte tensor on the CPU, found " +
                (state.defined() ? state.toString() + " of " + std::to_string(state.dim()) +
                                       " dimensions on " + state.device().str()
                                 : std::string("an undefined tensor")) +
                ". map_location moved it? Send it back with .cpu().");
  try {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state.contiguous());
  } catch (const c10::Error& error) {
    throw Error(std::string("not a state of this random generator: ") +
                error.what_without_backtrace());
  }
}

}  // namespace lockstep
