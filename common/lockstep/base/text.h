// Words for people: lists, numbers of things, lines of a width.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

std::string list(const std::vector<std::string>& parts);  // "a, b and c"
std::string list(const std::vector<int>& numbers);        // "0, 2 and 3"
std::string ranks_text(const std::vector<int>& ranks);    // "rank 1", "ranks 0, 2 and 3"
std::string plural(std::int64_t count, const char* one);  // "1 id", "3 ids"
std::string signal_name(int signal);                      // "signal 9 (SIGKILL)"
// Broken into lines of at most 80 columns, each with the indent and a line break.
std::string wrapped(const std::string& text, const std::string& indent);

}  // namespace lockstep
