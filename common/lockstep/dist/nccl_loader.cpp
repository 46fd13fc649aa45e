// Finds and loads lockstep_nccl, so that only a program that asks for NCCL pays for torch_cuda.
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/dist/backends.h>

#include <filesystem>
#include <typeinfo>
#include <vector>

namespace lockstep::detail {
namespace {

constexpr const char* kLibraryName = "liblockstep_nccl.so";

struct Library {
  NcclVersionFunction* version = nullptr;
  MakeNcclFunction* make = nullptr;
};

std::vector<std::filesystem::path> candidates() {
  // A name that is given is the only one tried: falling back in silence would hide a wrong name.
  if (const auto named = environment("LOCKSTEP_NCCL_LIBRARY")) return {*named};
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  return {folder / kLibraryName, folder / ".." / "lib" / kLibraryName};
}

void* find_symbol(void* handle, const char* name) {
  void* symbol = ::dlsym(handle, name);
  if (symbol == nullptr)
    throw UnavailableError(
        std::string("backend nccl: the library found is not of this version: it has no ") + name);
  return symbol;
}

Library symbols_of(void* handle) {
  return {reinterpret_cast<NcclVersionFunction*>(find_symbol(handle, kNcclVersionSymbol)),
          reinterpret_cast<MakeNcclFunction*>(find_symbol(handle, kMakeNcclSymbol))};
}

std::string reason_of_failure() {
  const char* reason = ::dlerror();
  return reason != nullptr ? reason : "no reason given";
}

Library open_library() {
  std::string tried;
  for (const auto& path : candidates()) {
    tried += "\n  " + path.string();
    if (!std::filesystem::exists(path)) continue;
    void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr)
      throw UnavailableError("backend nccl: " + path.string() +
                             " cannot be loaded: " + reason_of_failure());
    return symbols_of(handle);
  }
  // By its name alone it is looked for where the RUNPATH says that it was built or installed.
  if (!environment("LOCKSTEP_NCCL_LIBRARY")) {
    if (void* handle = ::dlopen(kLibraryName, RTLD_NOW | RTLD_LOCAL)) return symbols_of(handle);
    tried += "\n  the program's RUNPATH and the system's libraries: " + reason_of_failure();
  }
  throw UnavailableError(
      "backend nccl is not part of this build: it needs a LibTorch with CUDA, nccl.h and the CUDA "
      "headers when it is configured. Use the backend gloo, or name the library with "
      "LOCKSTEP_NCCL_LIBRARY. Looked for:" +
      tried);
}

const Library& library() {
  static const Library loaded = open_library();
  return loaded;
}

}  // namespace

void load_nccl() {
  library();
}

// torch keeps the first answer: without torch_cuda, what stands in for it.
void require_torch_with_cuda() {
  const at::CUDAHooksInterface& hooks = at::detail::getCUDAHooks();
  if (typeid(hooks) == typeid(at::CUDAHooksInterface))
    throw UsageError(
        "backend nccl: torch was called before its CUDA was loaded (torch::manual_seed is enough), "
        "and has none for the rest of this process: call lockstep::load_backend(\"nccl\") first in "
        "main");
}

int nccl_version() {
  return library().version();
}

BackendPtr make_nccl(const BackendRequest& request) {
  set_nccl_environment(request);
  BackendPtr backend;
  library().make(request, backend);
  return backend;
}

}  // namespace lockstep::detail
