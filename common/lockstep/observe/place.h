// The line of a program that calls the library. As a last default argument it is the caller's own:
//
//   void barrier(c10d::ProcessGroup& group, Place place = Place::here());
#pragma once

namespace lockstep {

// clang 14 has no std::source_location.
struct Place {
  const char* file;  // as the compiler was given it; never freed
  int line;

  static constexpr Place here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

}  // namespace lockstep
