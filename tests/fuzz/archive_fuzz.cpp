// libFuzzer's entry to the zip reader and the unpickler. Build with -DLOCKSTEP_FUZZ=ON and clang, then
//
//   build/.../tests/archive_fuzz -max_len=16384 -rss_limit_mb=512 work-folder tests/fuzz/corpus
#include <cstdint>

#include "archive_input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  lockstep::archive::try_input({reinterpret_cast<const char*>(data), size});
  return 0;
}
