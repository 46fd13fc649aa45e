// Lesson 07: checkpoints. State that is not in the file is lost, and the file must be whole.
//
//   loading.cpp   where tensors go when they are loaded, and under which names
//   state.cpp     what a file must hold for a run to go on as if nothing had happened
//   position.cpp  going on behind the last sample that was trained on
//   writing.cpp   one writer, and all ranks wait until it is done
//   nodes.cpp     each node has a local rank 0
//   killed.cpp    a save that is killed half way
//
// Run:  ./lockstep run 07_checkpoint
//       07_checkpoint --variant torn-checkpoint --world-size 4
#include <lockstep/lesson/lesson.h>

lockstep::Part loading_part();
lockstep::Part state_part();
lockstep::Part position_part();
lockstep::Part writing_part();
lockstep::Part nodes_part();
lockstep::Part killed_part();

int main(int argc, char** argv) {
  return lockstep::lesson_main(argc, argv,
                               {.name = "07_checkpoint",
                                .title = "Checkpoints: all of the state, whole, and read in time",
                                .parts = {loading_part(), state_part(), position_part(),
                                          writing_part(), nodes_part(), killed_part()}});
}
