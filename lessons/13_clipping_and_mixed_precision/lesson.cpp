// Lesson 13: clipping and mixed precision. Two things that are done to a gradient between backward
// and the optimizer, and the order in which the ranks do them.
//
//   clipping.cpp   which gradient is clipped, and by which norm
//   scaling.cpp    clipping a gradient whose loss was scaled
//   overflow.cpp   one rank's gradient overflows: who leaves the step out
//   precision.cpp  a sum over ranks in 16 bits
//
// Run:  ./lockstep run 13_clipping_and_mixed_precision
//       13_clipping_and_mixed_precision --variant norm-reduced-twice --world-size 4
#include <lockstep/lesson/lesson.h>

lockstep::Part clipping_part();
lockstep::Part scaling_part();
lockstep::Part overflow_part();
lockstep::Part precision_part();

int main(int argc, char** argv) {
  return lockstep::lesson_main(
      argc, argv,
      {.name = "13_clipping_and_mixed_precision",
       .title = "Clipping and mixed precision: which gradient, whose norm, how many bits",
       .parts = {clipping_part(), scaling_part(), overflow_part(), precision_part()}});
}
