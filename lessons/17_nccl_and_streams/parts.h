// The parts of lesson 17, one file each, and what they share.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/lesson/figures.h>
#include <lockstep/lesson/lesson.h>

#include <chrono>

// How long a rank waits here for its peers' operations, and for their processes to start. NCCL
// itself has no such limit.
inline constexpr std::chrono::seconds kPatience{5}, kUntilAllAreThere{30};

[[noreturn]] inline void built_without_cuda() {
  throw lockstep::UnavailableError(
      "built without CUDA kernels: nvcc, its runtime or NCCL was missing or did not fit "
      "(./lockstep doctor says which nvcc there is)");
}

lockstep::Part communicators_part();
lockstep::Part streams_part();
lockstep::Part shared_memory_part();
