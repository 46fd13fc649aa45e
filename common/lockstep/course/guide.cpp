// The first answer in a new clone: `list` and `explain`, in one unit that a compiler makes in seconds
// (cmake/setup/guide.sh). The whole program has them, too, and answers as soon as it is built.
#include <lockstep/base/environment.cpp>
#include <lockstep/base/error.cpp>
#include <lockstep/base/file.cpp>
#include <lockstep/base/hash.cpp>
#include <lockstep/base/text.cpp>
#include <lockstep/course/cpp_text.cpp>
#include <lockstep/course/diff.cpp>
#include <lockstep/course/difference.cpp>
#include <lockstep/course/exercise.cpp>
#include <lockstep/course/explain_command.cpp>
#include <lockstep/course/file_lock.cpp>
#include <lockstep/course/fold.cpp>
#include <lockstep/course/lessons.cpp>
#include <lockstep/course/list_command.cpp>
#include <lockstep/course/narrow.cpp>
#include <lockstep/course/nearest.cpp>
#include <lockstep/course/pitfall_source.cpp>
#include <lockstep/course/program.cpp>
#include <lockstep/course/progress.cpp>
#include <lockstep/course/prose.cpp>
#include <lockstep/course/terminal.cpp>
#include <lockstep/diagnose/equations.cpp>
#include <lockstep/diagnose/nearest.cpp>
#include <lockstep/report/page.cpp>

int main(int argc, char** argv) {
  using namespace lockstep;
  return course::program(argc, argv, [](CLI::App& app, int& exit_code) {
    course::add_list_command(app, exit_code);
    course::add_explain_command(app, exit_code);
  });
}
