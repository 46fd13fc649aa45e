// What one rank calls, in a form that the ranks can exchange; and whether what all of them call fits
// together. No communication.
#pragma once

#include <lockstep/record/decorated_backend.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::record {

// What goes from one rank to another.
struct Part {
  at::ScalarType dtype = at::ScalarType::Undefined;
  std::int64_t numel = 0;
  bool operator==(const Part&) const = default;
};
std::string describe(const Part& part);  // "3 x float32"

struct Fingerprint {
  // The same on all ranks: operation, reduce op, root, group, and unless each rank has parts of its
  // own, dtypes and shapes. As people read it.
  std::string what;
  // By rank. A list that is empty where the other side has one stands for `own`, for every rank.
  bool in_parts = false;
  Part own;
  std::vector<Part> sends, receives;

  // Where all ranks have the same, and not 0, their calls fit together. 0: it takes the whole
  // fingerprints to know.
  std::uint64_t hash(int world_size) const;
  std::string encode() const;
  static Fingerprint decode(const std::string& text);
};

Fingerprint fingerprint_of(const Call& call, const std::string& group, int world_size);

struct Mismatch {
  std::vector<int> ranks;  // the strict minority, or all that differ where there is none
  std::string text;        // who called what
};

// `of_ranks` by rank. Nothing where they fit together.
std::optional<Mismatch> mismatch_of(const std::vector<Fingerprint>& of_ranks);

}  // namespace lockstep::record
