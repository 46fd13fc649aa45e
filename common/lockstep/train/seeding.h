// Seeds that differ where random numbers must, and are equal where they must.
#pragma once

#include <cstdint>

namespace lockstep {

// Seeds for generators are made by folding numbers into one with SplitMix64's finalizer
// (Steele, Lea and Flood, OOPSLA 2014):
//
//   fold(h, v): z = h + v + 0x9e3779b97f4a7c15
//               z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9
//               z = (z ^ z >> 27) * 0x94d049bb133111eb
//               z ^ z >> 31                             all modulo 2^64
//
// For a given h it is one to one in v. So of one seed no two ranks, and of one seed and epoch no
// two indices, get the same 64 bits. torch's CPU generator goes by the low 32 of them: for very many
// streams take one that uses all, as std::mt19937_64 does.

// fold(fold(0, seed), rank). Not seed + rank: that gives rank 1 of seed 0 the stream of rank 0 of
// seed 1.
std::uint64_t rank_seed(std::uint64_t seed, int rank);

// fold(fold(fold(0, seed), epoch), index): a sample's own random numbers, whoever draws them. The same
// with any number of ranks and loader workers, after a restart too, and with no state to copy or save.
std::uint64_t sample_seed(std::uint64_t seed, std::int64_t epoch, std::int64_t index);

// torch::manual_seed(rank_seed(seed, rank)): this process's generators (all devices') go on as those
// of no other rank. Not collective. Call it after the model is made, which all ranks must draw from
// the same seed (or receive by broadcast), and before the first random number of training.
void manual_seed_per_rank(std::uint64_t seed, int rank);

}  // namespace lockstep
