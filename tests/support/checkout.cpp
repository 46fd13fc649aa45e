#include "checkout.h"

namespace lockstep::testing {

std::filesystem::path in_checkout(const std::string& path) {
  return std::filesystem::path(LOCKSTEP_SOURCE_DIR) / path;
}

std::string python() {
  return LOCKSTEP_PYTHON;
}

Finished validate(const std::string& name, const std::vector<std::filesystem::path>& files) {
  std::vector<std::string> command{python(), in_checkout("tests/support/validate.py"),
                                   in_checkout("reports/schema/" + name + ".schema.json")};
  command.insert(command.end(), files.begin(), files.end());
  return run(command);
}

}  // namespace lockstep::testing
