// Lesson 10: the launch. A launcher starts processes and tells each its rank, in a few variables.
// All else the program does itself: it takes a device, finds the others, splits the data, and
// leaves in order.
//
//   devices.cpp    which device is a rank's: RANK, LOCAL_RANK, and what CUDA_VISIBLE_DEVICES shows
//   shards.cpp     how many ranks there are: WORLD_SIZE is no node's number of devices
//   threads.cpp    how many threads a rank may use
//   rendezvous.cpp how ranks find each other: port, interface, and who leaves last
//   spawning.cpp   who starts the ranks: the launcher or the program, never both
//   preparing.cpp  who prepares the data: one rank, and the others wait
//   alone.cpp      a process that nobody told its rank
//
// Run:  ./lockstep run 10_launch
//       10_launch --variant rank-as-device-index --world-size 4
#include "parts.h"

int main(int argc, char** argv) {
  return lockstep::lesson_main(
      argc, argv,
      {.name = "10_launch",
       .title = "The launch: where a rank runs, and what is its own",
       .parts = {devices_part(), shards_part(), threads_part(), rendezvous_part(), spawning_part(),
                 preparing_part(), alone_part()},
       .default_world_size = 4});
}
