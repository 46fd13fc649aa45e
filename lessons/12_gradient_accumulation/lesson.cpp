// Lesson 12: gradient accumulation. Several small batches, one update: the gradient of a batch that
// does not fit.
//
//   syncing.cpp      when the ranks talk: once an update, whatever the number of microbatches
//   dividing.cpp     what each microbatch counts, and which backward is the last
//   uneven.cpp       microbatches of unequal size
//   last_window.cpp  an epoch that ends between two updates
//
// Run:  ./lockstep run 12_gradient_accumulation
//       12_gradient_accumulation --variant no-sync-around-backward-only --world-size 4
#include <lockstep/lesson/lesson.h>

lockstep::Part syncing_part();
lockstep::Part dividing_part();
lockstep::Part uneven_part();
lockstep::Part last_window_part();

int main(int argc, char** argv) {
  return lockstep::lesson_main(
      argc, argv,
      {.name = "12_gradient_accumulation",
       .title = "Gradient accumulation: many backwards, one reduction, one mean",
       .parts = {syncing_part(), dividing_part(), uneven_part(), last_window_part()}});
}
