#include <lockstep/base/environment.h>
#include <lockstep/course/terminal.h>
#include <unistd.h>

namespace lockstep::course {
namespace {

bool has_colours() {
  static const bool has = isatty(STDOUT_FILENO) == 1 &&
                          environment("NO_COLOR").value_or("").empty() &&
                          environment("TERM").value_or("dumb") != "dumb";
  return has;
}

}  // namespace

std::string coloured(const std::string& text, Colour colour) {
  if (!has_colours()) return text;
  return "\033[" + std::to_string(static_cast<int>(colour)) + "m" + text + "\033[0m";
}

}  // namespace lockstep::course
