// What tests use of the clone that they were built from.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "program.h"

namespace lockstep::testing {

// A file or folder of the clone.
std::filesystem::path in_checkout(const std::string& path);

// The Python beside LibTorch; empty where none was configured.
std::string python();

// Holds files against reports/schema/NAME.schema.json, in python(): exit code 1 where one does not fit.
Finished validate(const std::string& name, const std::vector<std::filesystem::path>& files);

}  // namespace lockstep::testing
