// Lesson 07, part "killed": a save that is killed half way.
//
// Concept:  write the new file beside the old one, and rename it when it is whole. A rename is one
//           step: whenever the process is killed, the old file or the new one is there.
// Symptom:  a save that opens the old file for writing empties it first. If the process is killed
//           then, the old checkpoint is gone and the new one cannot be read.
#include <fcntl.h>
#include <lockstep/archive/system.h>
#include <lockstep/lesson/lesson.h>
#include <lockstep/observe/observer.h>

#include <memory>

#include "run.h"

namespace {

using namespace checkpoint_lesson;

struct Killed {};

// A process that is killed in the middle of a save, as its files show it: the bytes that it had
// written are there, and it does nothing more. Only its open files are closed, as the kernel does.
class KilledAfter : public archive::System {
 public:
  explicit KilledAfter(std::size_t bytes) : left_(bytes) {}
  ssize_t pwrite(int fd, const void* bytes, std::size_t size, off_t offset) override {
    if (size < left_) {
      left_ -= size;
      return System::pwrite(fd, bytes, size, offset);
    }
    System::pwrite(fd, bytes, left_, offset);
    dead_ = true;
    throw Killed{};
  }
  int unlink(const char* path) override { return dead_ ? 0 : System::unlink(path); }

 private:
  std::size_t left_;
  bool dead_ = false;
};

// As std::ofstream and torch::save do; and tells what save_checkpoint tells by itself.
void write_in_place(const std::filesystem::path& file, const std::string& bytes,
                    archive::System& system) {
  tell([&](Observer& to) { to.saving(file); });
  const int fd = system.open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const auto close = [&](const int* open) { system.close(*open); };
  const std::unique_ptr<const int, decltype(close)> closer(&fd, close);
  system.pwrite(fd, bytes.data(), bytes.size(), 0);
  tell([&](Observer& to) { to.saved(file, {"model"}); });
}

// Rank 0's second save, in which it is killed.
void save_and_die(RankContext& context, Run& run, const std::filesystem::path& file,
                  const std::filesystem::path& newer, const Fault& fault) {
  const Value checkpoint = Value::Dict{{"model", state_dict(*run.model)}};
  const auto bytes = bytes_of(context, checkpoint);
  KilledAfter killed(bytes.size() / 2);
  try {
    if (fault("near-miss-older-file-is-kept")) {
      write_in_place(newer, bytes, killed);
    } else if (fault("torn-checkpoint")) {
      write_in_place(file, bytes, killed);
    } else {
      save_checkpoint(file, checkpoint, {.system = &killed});
    }
  } catch (const Killed&) {
  }
}

// The near miss's load: of the newer file where it is whole, else of the one before.
Checkpoint load_newest_whole(const std::filesystem::path& newer, const std::filesystem::path& file,
                             c10::Device device) {
  try {
    return load_checkpoint(newer, {.map_location = device});
  } catch (const Error&) {
    return load_checkpoint(file, {.map_location = device});
  }
}

void train(RankContext& context, const Fault& fault) {
  const auto data = training_data(context);
  auto sampler = sampler_of(context, data);
  const auto file = context.folder() / "checkpoint.pt", newer = context.folder() / "newer.pt";
  {
    Run run(context, data);
    run.epoch(sampler, 0);
    save_on_rank_zero(*context.group(), [&] {
      save_checkpoint(file, Value::Dict{{"model", state_dict(*run.model)}});
    });
    run.epoch(sampler, 1);
    if (context.rank() == 0) save_and_die(context, run, file, newer, fault);
    barrier(*context.group());
  }
  Run run(context, data);  // the job is started again
  const auto checkpoint = fault("near-miss-older-file-is-kept")
                              ? load_newest_whole(newer, file, context.device())
                              : load_checkpoint(file, {.map_location = context.device()});
  load_state_dict(*run.model, checkpoint.at("model"));
}

}  // namespace

lockstep::Part killed_part() {
  return {.name = "killed",
          .run = train,
          .broken = {{.slug = "torn-checkpoint",
                      .what = "a save in place of the old file is killed half way",
                      .oracle = {"whole checkpoints that a rank finds", readable_checkpoints},
                      .crashes = true,
                      .min_world_size = 1}},
          .near_misses = {{.name = "near-miss-older-file-is-kept",
                           .slug = "torn-checkpoint",
                           .naive_check = "a save was killed, and its file is torn"}},
          .notes = notes<Loads>};
}
