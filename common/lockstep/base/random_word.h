// A name that nobody else draws.
#pragma once

#include <cstdio>
#include <random>
#include <string>

namespace lockstep {

// 16 hexadecimal digits, others in each call and process.
inline std::string random_word() {
  std::random_device device;
  char word[17];
  std::snprintf(word, sizeof word, "%08x%08x", device(), device());
  return word;
}

}  // namespace lockstep
