#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>

#include <charconv>
#include <cstdlib>

namespace lockstep {

std::optional<std::string> environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<int> environment_int(const std::string& name) {
  const auto value = environment(name);
  if (!value) return std::nullopt;
  int number = 0;
  const char* end = value->data() + value->size();
  const auto [stop, error] = std::from_chars(value->data(), end, number);
  if (error != std::errc{} || stop != end)
    throw UsageError("the environment variable " + name + " must be an integer, and is \"" +
                     *value + "\"");
  return number;
}

}  // namespace lockstep
