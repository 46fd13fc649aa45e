// A folder of dumps, one file a rank, named <prefix><rank> as torch does (comm_lib_trace_rank_0, once
// nccl_trace_rank_0), with ".json", ".pickle" or ".pkl" after it or nothing.
#pragma once

#include <lockstep/flight/dump.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::flight {

struct Dumps {
  std::shared_ptr<Names> names = std::make_shared<Names>();
  std::vector<Dump> ranks;  // by rank; those without a file are not in it
};

struct DumpFile {
  int rank = -1;
  std::filesystem::path path;
};

// The dumps in a folder, by rank. Without a prefix: those of torch's names, or else of the
// only prefix under which a file begins as a dump does; empty where there is none. Throws
// UsageError where several prefixes fit, and Error where a rank has two files.
std::vector<DumpFile> find_dumps(const std::filesystem::path& folder,
                                 const std::optional<std::string>& prefix);

// Reads them on up to two threads. Throws Error naming the file of the lowest rank that cannot be
// read, what is wrong with it, and how many more there are.
Dumps read_dumps(const std::vector<DumpFile>& files);

}  // namespace lockstep::flight
