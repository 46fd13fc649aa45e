// A training such as a user of the library writes: which gesture did the accelerometer see? No lesson shaped it, and
// it was written before a detector was run on it: it says how well `lockstep diagnose` does on a new job.
#pragma once

#include <lockstep/dist/process_group.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace gestures {

struct Options {
  std::filesystem::path checkpoint;
  std::uint64_t seed = 0;
  std::int64_t samples = 1027, epochs = 3;
  bool tells = false;  // makes the calls of record/recorder.h
};

inline const std::vector<std::string> kFaults = {
    "missing-set-epoch",
    "set-epoch-on-copy",
    "no-sharding",
    "shards-overlap",
    "same-augmentation-everywhere",
    "inputs-not-normalized-on-one-rank",
    "dropout-on-one-rank",
    "loss-weighs-twice-on-one-rank",
    "rate-differs-on-one-rank",
    "does-not-clip-on-one-rank",
    "gradients-not-zeroed",
    "schedule-length-ignores-world-size",
    "evaluation-in-train-mode",
    "train-mode-differs-across-ranks",
    "evaluation-padding",
    "rank-zero-metric",
    "optimizer-state-missing",
    "scheduler-or-rng-state-missing",
    "resume-repeats-epoch",
    "concurrent-writers",
};

// Collective. Trains up to `stop` epochs, from the checkpoint where there is one; gives the accuracy after the last.
double train(const lockstep::ProcessGroupPtr& group, const Options& options,
             const std::string& fault, std::int64_t stop);

}  // namespace gestures
