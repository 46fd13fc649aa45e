// The environment, changed for a test.
#pragma once

#include <cstdlib>
#include <string>

namespace lockstep::testing {

// A variable of the environment, for as long as this lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

}  // namespace lockstep::testing
