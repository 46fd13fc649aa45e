// Whether what wants a GPU can run here.
#pragma once

#include <lockstep/gpu/driver.h>

#include <string>

namespace lockstep::testing {

// Why a test is skipped; empty where there is a GPU.
inline std::string why_no_gpu() {
  const auto driver = gpu::ask_driver();
  if (!driver.missing.empty()) return "no NVIDIA driver: " + driver.missing;
  return driver.gpus.empty() ? "the driver sees no GPU" : "";
}

}  // namespace lockstep::testing
