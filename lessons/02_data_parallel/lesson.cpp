// Lesson 02: DataParallel. One process drives several devices: it scatters the batch, copies the
// model to each device, runs the copies side by side, and reduces their gradients on the first.
//
//   batch.cpp        how a batch is cut, and what the parts' gradients weigh
//   buffers.cpp      which copy keeps BatchNorm's running statistics
//   bottleneck.cpp   what the first device pays
//
// Run:  ./lockstep run 02_data_parallel            two logical CPU devices: no GPU is needed
//       02_data_parallel --variant odd-batch-split --world-size 4
#include <lockstep/lesson/lesson.h>

lockstep::Part batch_part();
lockstep::Part buffers_part();
lockstep::Part bottleneck_part();

int main(int argc, char** argv) {
  return lockstep::lesson_main(
      argc, argv,
      {.name = "02_data_parallel",
       .title = "DataParallel: one process, several devices, and what it costs",
       .parts = {batch_part(), buffers_part(), bottleneck_part()}});
}
