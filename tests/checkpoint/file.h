// A file in a folder of its own.
#pragma once

#include <lockstep/base/file.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <torch/torch.h>

#include <string>

#include "../support/refusal.h"

namespace lockstep {

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
