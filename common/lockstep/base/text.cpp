#include <lockstep/base/text.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <sstream>

namespace lockstep {
namespace {

std::size_t hanging_column(const std::string& line, std::size_t hang) {
  const auto begin = line.find_first_not_of(' ');
  const auto gap = line.find("  ", begin);
  const auto second = line.find_first_not_of(' ', gap);
  const bool two_columns = gap != std::string::npos && second <= kColumns / 2;
  return two_columns ? second : begin + hang;
}

// Where to break a text that stands behind so many columns: at the last space that leaves it within the line, else at the
// first one after that.
std::size_t break_of(std::string_view text, std::size_t before, std::size_t hanging) {
  const auto at = text.rfind(' ', kColumns - std::min(before, kColumns));
  const bool within = at != std::string_view::npos && at + before > hanging;
  return within ? at : text.find(' ', std::max(kColumns, hanging) - before);
}

// How many bytes a character at the beginning of this UTF-8 has that a terminal acts upon; 0: it has none.
std::size_t acted_upon(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto in = [&](std::size_t i, unsigned from, unsigned to) {
    return byte(i) >= from && byte(i) <= to;
  };
  if (byte(0) < 0x20 || byte(0) == 0x7f) return 1;
  if (byte(0) == 0xc2 && in(1, 0x80, 0x9f)) return 2;  // U+0080 to U+009F
  if (byte(0) != 0xe2) return 0;
  const bool general = byte(1) == 0x80 && (in(2, 0x8e, 0x8f) || in(2, 0xa8, 0xae));  // U+200E ...
  const bool isolates = byte(1) == 0x81 && in(2, 0xa6, 0xa9);  // U+2066 to U+2069
  return general || isolates ? 3 : 0;
}

}  // namespace

std::string list(const std::vector<std::string>& parts) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i)
    text += (i == 0 ? "" : i + 1 < parts.size() ? ", " : " and ") + parts[i];
  return text;
}

std::string list(const std::vector<int>& numbers) {
  std::vector<std::string> parts;
  for (const int number : numbers) parts.push_back(std::to_string(number));
  return list(parts);
}

std::string ranks_text(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + list(ranks);
}

std::string plural(std::int64_t count, const char* one) {
  return std::to_string(count) + " " + one + (count == 1 ? "" : "s");
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  const auto text = "signal " + std::to_string(signal);
  return name == nullptr ? text : text + " (SIG" + name + ")";
}

std::string escaped(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const auto length = acted_upon(text);
    for (const char byte : text.substr(0, length)) {
      char code[5];
      std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned char>(byte));
      result += code;
    }
    if (length == 0) result += text.front();
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return result;
}

std::string wrapped(const std::string& text, const std::string& indent) {
  std::istringstream words(text);
  std::string result, line = indent;
  for (std::string word; words >> word;) {
    word = escaped(word);
    if (line.size() > indent.size() && line.size() + 1 + word.size() > kColumns) {
      result += line + "\n";
      line = indent;
    }
    line += (line.size() > indent.size() ? " " : "") + word;
  }
  return result + line + "\n";
}

std::string filled(const std::string& text, std::size_t hang) {
  std::istringstream lines(text);
  std::string result;
  for (std::string line; std::getline(lines, line);) {
    line = escaped(line);
    std::string_view rest = line;
    if (line.size() > kColumns) {
      const auto hanging = hanging_column(line, hang);
      std::size_t before = 0;
      for (auto at = break_of(rest, before, hanging);
           before + rest.size() > kColumns && at != std::string_view::npos;
           at = break_of(rest, before, hanging)) {
        result.append(rest.substr(0, at)).append("\n").append(hanging, ' ');
        rest.remove_prefix(at + 1);
        before = hanging;
      }
    }
    result.append(rest) += "\n";
  }
  return result;
}

}  // namespace lockstep
