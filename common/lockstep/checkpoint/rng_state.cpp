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
  const std::lock_guard<std::mutex> lock(generator.mutex());
  // A file of a few bytes can describe a tensor of any size, and contiguous() would make it. Fewer bytes than
  // the generator's own are its matter: torch takes the shorter states of older versions.
  const auto most = generator.get_state().numel();
  if (state.numel() > most)
    throw Error("not a state of this random generator: it has " + std::to_string(state.numel()) +
                " bytes, the generator's own " + std::to_string(most));
  try {
    generator.set_state(state.contiguous());
  } catch (const c10::Error& error) {
    throw Error(std::string("not a state of this random generator: ") +
                error.what_without_backtrace());
  }
}

}  // namespace lockstep
