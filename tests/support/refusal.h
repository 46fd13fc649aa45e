// What a call says when it refuses.
#pragma once

#include <lockstep/base/error.h>

#include <string>

namespace lockstep {

// What `call` says when it throws `Exception`; empty where it does not.
template <class Exception = Error, class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace lockstep
