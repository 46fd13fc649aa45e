// Lesson 16: figures over all ranks. What is reported, and what is trained on.
//
//   evaluation.cpp    a loss that rank 0 prints, an accuracy that every rank goes by
//   contrastive.cpp   a loss over features that were gathered from all ranks
//   logged_loss.cpp   a loss that is averaged for the log, and then trained on
//   gradient_scale.h  what the oracles of these two compare the gradient with
//
// Run:  ./lockstep run 16_metrics
//       16_metrics --variant local-hits-global-count --world-size 4
#include <lockstep/lesson/lesson.h>

lockstep::Part evaluation_part();
lockstep::Part contrastive_part();
lockstep::Part logged_loss_part();

int main(int argc, char** argv) {
  return lockstep::lesson_main(
      argc, argv,
      {.name = "16_metrics",
       .title = "Metrics: reduce sums and counts, and only a copy of the loss",
       .parts = {evaluation_part(), contrastive_part(), logged_loss_part()}});
}
