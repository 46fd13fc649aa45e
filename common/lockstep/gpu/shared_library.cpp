#include <dlfcn.h>
#include <lockstep/gpu/shared_library.h>

namespace lockstep::gpu {

SharedLibrary::SharedLibrary(const std::string& name)
    : handle_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ != nullptr) return;
  const char* reason = ::dlerror();
  why_not_ = reason != nullptr ? reason : "no reason given";
}

void* SharedLibrary::symbol(const char* name) const {
  return handle_ != nullptr ? ::dlsym(handle_, name) : nullptr;
}

}  // namespace lockstep::gpu
