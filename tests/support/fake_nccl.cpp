// To be preloaded: an NCCL that is of another version than the header, LOCKSTEP_FAKE_NCCL (as ncclGetVersion gives
// it, 21800 for 2.18.0), and else the one that is there.
#include <cstdlib>

extern "C" int ncclGetVersion(int* version) {
  const char* text = std::getenv("LOCKSTEP_FAKE_NCCL");
  *version = text != nullptr ? std::atoi(text) : 0;
  return 0;
}
