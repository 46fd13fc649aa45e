// Lesson 10, part "preparing": one rank prepares the data, and the others wait.
//
// Concept:  one rank of each folder downloads and unpacks, under another name, and renames the file
//           when it is whole. The others wait for that.
// Symptom:  a rank reads a file that another has just emptied to write it again. It usually shows
//           only on the first run on a new machine.
#include <lockstep/base/error.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "parts.h"

namespace {

using namespace lockstep;
namespace fs = std::filesystem;

// What is unpacked: the pixels of the samples that train_a_little() takes.
std::string pixels(const RankContext& context) {
  const auto data = fashion_mnist_or_synthetic(Split::train, 32L * context.world_size());
  return {static_cast<const char*>(data.inputs.const_data_ptr()), data.inputs.nbytes()};
}

// Empties the file and writes it, as std::ofstream does. Calls `in_the_middle` at the half.
void write(RankContext& context, const fs::path& file, const std::function<void()>& in_the_middle) {
  const auto bytes = pixels(context);
  const auto half = static_cast<std::streamsize>(bytes.size() / 2);
  context.told().data_file("write_begin", file);
  std::ofstream out(file, std::ios::binary);
  out.write(bytes.data(), half).flush();
  in_the_middle();
  out.write(bytes.data() + half, static_cast<std::streamsize>(bytes.size()) - half).flush();
  context.told().data_file("write_end", file);
}

void read(RankContext& context, const fs::path& file) {
  const auto size = fs::file_size(file), whole = pixels(context).size();
  context.told().data_file("read", file, size == whole);
  if (size != whole)
    throw Error(file.filename().string() + " holds " + std::to_string(size) + " bytes of " +
                std::to_string(whole));
}

// No rank waits for the file. Barriers make certain that the last rank is the slowest: it empties
// the file when the others have written theirs, and is half done when they read.
void each_writes(RankContext& context, const fs::path& file) {
  const bool is_last = context.rank() == context.world_size() - 1;
  if (!is_last) write(context, file, [] {});
  barrier(*context.group());
  const auto while_others_read = [&] {
    barrier(*context.group());
    barrier(*context.group());
  };
  if (is_last) return write(context, file, while_others_read);
  barrier(*context.group());
  read(context, file);
  barrier(*context.group());
}

void train(RankContext& context, const Fault& fault) {
  const auto file = context.folder() / "pixels.bin";
  if (fault("every-rank-prepares-data")) {
    each_writes(context, file);
  } else if (fault("near-miss-each-under-its-own-name")) {
    // Wasteful, and right: what is renamed is whole.
    const auto own = file.string() + "." + std::to_string(context.rank());
    write(context, own, [] {});
    fs::rename(own, file);
  } else {
    if (context.rank() == 0) {
      const auto unfinished = file.string() + ".new";
      write(context, unfinished, [] {});
      fs::rename(unfinished, file);
    }
    barrier(*context.group());
  }
  read(context, file);
  train_a_little(context);
}

}  // namespace

Part preparing_part() {
  return {.name = "preparing",
          .run = train,
          .broken = {{.slug = "every-rank-prepares-data",
                      .what = "all ranks unpack the data into one folder",
                      .oracle = {"ranks that trained on a whole file", ranks_that_trained},
                      .crashes = true}},
          .near_misses = {{.name = "near-miss-each-under-its-own-name",
                           .slug = "every-rank-prepares-data",
                           .naive_check = "all ranks write the data"}}};
}
