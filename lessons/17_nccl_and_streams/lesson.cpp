// Lesson 17: what is below a process group. NCCL's collectives are kernels: they are put on a CUDA
// stream, run when that stream comes to them, and wait on the GPU for their peers. What c10d does
// about that is done by hand here.
//
//   communicators.cpp  two communicators in one process: made, used, watched, and given up
//   streams.cpp        a buffer that one stream writes and another reduces
//   shared_memory.cpp  /dev/shm, through which processes of one machine hand each other data
//
// The first two need a GPU for each rank (or one that they share); the last needs none.
//
// Run:  ./lockstep run 17_nccl_and_streams
//       17_nccl_and_streams --variant small-shared-memory --world-size 4
#include "parts.h"

int main(int argc, char** argv) {
  return lockstep::lesson_main(
      argc, argv,
      {.name = "17_nccl_and_streams",
       .title = "NCCL and streams: what is below a process group",
       .parts = {communicators_part(), streams_part(), shared_memory_part()}});
}
