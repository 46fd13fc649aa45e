#include <lockstep/base/text.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

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

struct Character {
  char32_t code;
  std::size_t bytes;
};

// The character at the beginning of a text; none where the text does not begin with UTF-8.
std::optional<Character> character_of(std::string_view text) {
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const auto first = static_cast<unsigned char>(text.front());
  const std::size_t bytes = first < 0x80   ? 1
                            : first < 0xc0 ? 0
                            : first < 0xe0 ? 2
                            : first < 0xf0 ? 3
                                           : 4;
  if (bytes == 0 || first > 0xf4 || bytes > text.size()) return std::nullopt;
  char32_t code = bytes == 1 ? first : first & (0x7fU >> bytes);
  for (const char byte : text.substr(1, bytes - 1)) {
    if ((byte & 0xc0) != 0x80) return std::nullopt;
    code = code << 6 | (byte & 0x3f);
  }
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < kLeast[bytes] || code > 0x10ffff || surrogate) return std::nullopt;
  return Character{code, bytes};
}

// Controls, and what Unicode calls format characters: a terminal obeys them or shows nothing. Joiners of letters and emoji are
// among them, since a text may hide behind them. Source: the categories Cc, Cf, Zl and Zp of Unicode 15, without the marks
// of numbers and syllables in single scripts.
bool is_unseen(char32_t code) {
  constexpr std::pair<char32_t, char32_t> kUnseen[] = {
      {0x00, 0x1f},     {0x7f, 0x9f},     {0xad, 0xad},      {0x61c, 0x61c},
      {0x180e, 0x180e}, {0x200b, 0x200f}, {0x2028, 0x202e},  {0x2060, 0x206f},
      {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe0fff}};
  return std::any_of(std::begin(kUnseen), std::end(kUnseen), [&](const auto& range) {
    return code >= range.first && code <= range.second;
  });
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
  constexpr std::size_t kMost = 16, kMostParts = 20;
  if (ranks.size() <= kMost) return (ranks.size() == 1 ? "rank " : "ranks ") + list(ranks);
  std::vector<std::string> parts;
  std::size_t told = 0;
  while (told < ranks.size() && parts.size() < kMostParts) {
    auto end = told + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - told < 3) end = told + 1;
    parts.push_back(std::to_string(ranks[told]) +
                    (end - told > 1 ? "-" + std::to_string(ranks[end - 1]) : ""));
    told = end;
  }
  if (told < ranks.size()) parts.push_back(std::to_string(ranks.size() - told) + " more");
  return "ranks " + list(parts);
}

std::string ranks_text(const std::vector<int>& ranks, const char* one, const char* several) {
  return ranks_text(ranks) + " " + (ranks.size() == 1 ? one : several);
}

std::string plural(std::int64_t count, std::string_view one) {
  const bool hisses = one.ends_with("s") || one.ends_with("ch") || one.ends_with("x");
  return std::to_string(count) + " " + std::string(one) + (count == 1 ? "" : hisses ? "es" : "s");
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  const auto text = "signal " + std::to_string(signal);
  return name == nullptr ? text : text + " (SIG" + name + ")";
}

std::string escaped(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const auto character = character_of(text);
    const auto bytes = text.substr(0, character ? character->bytes : 1);
    if (character && !is_unseen(character->code)) {
      result += bytes;
    } else {
      for (const char byte : bytes) {
        char code[5];
        std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned char>(byte));
        result += code;
      }
    }
    text.remove_prefix(bytes.size());
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
