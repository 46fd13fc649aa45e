// A driver's library, opened by name at run time: what is not asked for is not loaded. Internal to gpu.
#pragma once

#include <string>

namespace lockstep::gpu {

class SharedLibrary {
 public:
  // Opened as the dynamic linker finds the name (LD_LIBRARY_PATH, the system's folders), and never closed: a
  // driver that has run once keeps threads and files of its own.
  explicit SharedLibrary(const std::string& name);

  bool is_open() const { return handle_ != nullptr; }
  const std::string& why_not() const { return why_not_; }  // the linker's words

  // The function of that name, or null. `Function` is its type.
  template <class Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;

  void* handle_;
  std::string why_not_;
};

}  // namespace lockstep::gpu
