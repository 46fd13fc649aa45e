// A C++ source as text: where its braces match, where its statements end. Enough for the lessons, no parser: no
// raw strings, no macros with unbalanced braces.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::course {

inline constexpr std::size_t kNowhere = std::string::npos;

// The same text, byte for byte as long, with spaces in place of comments, of what literals hold, and of preprocessor
// lines. What is found in it is code.
std::string code_only(std::string_view text);

// All of these take what code_only gives.
// A whole word.
bool word_at(const std::string& code, std::size_t at, std::string_view word);
// What is not blank: at or behind `at`, or the size; before `at`, or kNowhere.
std::size_t next_code(const std::string& code, std::size_t at);
std::size_t previous_code(const std::string& code, std::size_t at);
// The bracket that closes the one at `open`. Throws Error where there is none.
std::size_t closing(const std::string& code, std::size_t open);
// The bracket around `at`, or kNowhere.
std::size_t opening_around(const std::string& code, std::size_t at);
// Behind the statement that begins at `begin`: its semicolon or closing brace, with all that belongs to an if, a loop
// or a try.
std::size_t end_of_statement(const std::string& code, std::size_t begin);

// Lines, of any text.
std::size_t line_begin(std::string_view text, std::size_t at);
std::size_t line_end(std::string_view text, std::size_t at);  // behind its line break
// The spaces that the line of `at` begins with.
std::size_t indent_at(std::string_view text, std::size_t at);
// Where the comment directly above the line at `begin` begins, or `begin`.
std::size_t with_comment_above(std::string_view text, std::size_t begin);
std::vector<std::string> lines_of(std::string_view text);  // without line breaks
// Without as many leading spaces, on every line but the first where that begins in the middle of a line.
std::string dedented(std::string_view text, std::size_t spaces);

}  // namespace lockstep::course
