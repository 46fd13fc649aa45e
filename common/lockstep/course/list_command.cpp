// ./lockstep list: the lessons.
#include <lockstep/course/commands.h>
#include <lockstep/course/exit_code.h>
#include <lockstep/course/lessons.h>

#include <iomanip>
#include <iostream>

namespace lockstep::course {

void add_list_command(CLI::App& app, int& exit_code) {
  app.add_subcommand("list", "The lessons and what each one teaches")->callback([&exit_code] {
    for (const auto& lesson : lessons_of_clone())
      std::cout << std::left << std::setw(34) << lesson.name << lesson.title << "\n";
    exit_code = kOk;
  });
}

}  // namespace lockstep::course
