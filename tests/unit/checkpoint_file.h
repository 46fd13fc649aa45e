// A file in a folder of its own, and what is refused.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <torch/torch.h>

#include <string>

namespace lockstep {

// What `call` says when it throws Error; empty where it does not.
template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

struct CheckpointFile {
  TemporaryFolder folder{"lockstep-checkpoint"};
  std::filesystem::path path = folder.path() / "x.pt";

  Checkpoint round_trip(const Value& value, const SaveOptions& save = {.sync = false},
                        const LoadOptions& load = {}) const {
    save_checkpoint(path, value, save);
    return load_checkpoint(path, load);
  }
};

}  // namespace lockstep
