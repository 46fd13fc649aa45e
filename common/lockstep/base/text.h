// Words for people: lists, numbers of things, lines of a width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

inline constexpr std::size_t kColumns = 80;  // of a terminal

std::string list(const std::vector<std::string>& parts);  // "a, b and c"
std::string list(const std::vector<int>& numbers);        // "0, 2 and 3"
// "rank 1", "ranks 0, 2 and 3"; of more than 16, ascending, "ranks 0-6 and 9-39".
std::string ranks_text(const std::vector<int>& ranks);
// "rank 1 leaves", "ranks 1 and 2 leave".
std::string ranks_text(const std::vector<int>& ranks, const char* one, const char* several);
std::string plural(std::int64_t count, std::string_view one);  // "1 id", "3 ids"
std::string signal_name(int signal);                           // "signal 9 (SIGKILL)"
// Text from outside, on one line: bytes as \xNN where they are no UTF-8, or characters that a terminal acts upon or does not
// show, such as escape sequences, line breaks, and marks that turn the direction of writing.
std::string escaped(std::string_view text);
// Broken into lines of at most 80 columns, each with the indent and a line break; the words escaped.
std::string wrapped(const std::string& text, const std::string& indent);
// The same lines, escaped, but those longer than 80 columns, which are broken at spaces. What goes over hangs below the second
// column of a line that has two, set apart by two spaces or more, else `hang` columns right of the line's beginning.
// A word that is longer stays whole.
std::string filled(const std::string& text, std::size_t hang);

}  // namespace lockstep
