// The program behind ./lockstep.
#include <lockstep/course/program.h>

int main(int argc, char** argv) {
  using namespace lockstep;
  return course::program(argc, argv, [](CLI::App& app, int& exit_code) {
    course::add_list_command(app, exit_code);
    course::add_run_command(app, exit_code);
    course::add_explain_command(app, exit_code);
    course::add_exercise_command(app, exit_code);
    course::add_diagnose_command(app, exit_code);
    course::add_compare_command(app, exit_code);
  });
}
