// ./lockstep explain: what a pitfall is, with its code from the lesson's own source.
#include <lockstep/base/error.h>
#include <lockstep/base/exit_code.h>
#include <lockstep/base/file.h>
#include <lockstep/base/text.h>
#include <lockstep/course/commands.h>
#include <lockstep/course/cpp_text.h>
#include <lockstep/course/diff.h>
#include <lockstep/course/difference.h>
#include <lockstep/course/lessons.h>
#include <lockstep/course/pitfall_source.h>
#include <lockstep/course/prose.h>
#include <lockstep/course/terminal.h>
#include <lockstep/diagnose/equations.h>
#include <lockstep/diagnose/nearest.h>
#include <lockstep/report/page.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <regex>
#include <set>
#include <sstream>

namespace lockstep::course {
namespace {

namespace fs = std::filesystem;

std::string name_of(const fs::path& file) {
  return fs::relative(file, source_folder()).string();
}

// The code of a pitfall in Python, as its page shows it: made from a program that a test runs (tests/docs/page_code.py).
struct PythonCode {
  fs::path file;                // relative to the page's folder
  std::vector<DiffLine> lines;  // what differs, and some lines around it
};

// Nothing where the pitfall has no program in Python.
std::optional<PythonCode> python_code_of(const report::Page& page) {
  static const std::regex block("In Python,\\s\\[[^\\]]*\\]\\(([^)]*)\\)[^\\n]*\\n+```diff\\n");
  const auto section = page.section("The code");
  std::smatch found;
  if (!std::regex_search(section, found, block)) return std::nullopt;
  PythonCode python{.file = found[1].str(), .lines = {}};
  const auto after = found.suffix().str();
  for (const auto& line : lines_of(after.substr(0, after.find("```")))) {
    const bool has_sign = line.find_first_of(" +-") == 0;
    python.lines.push_back({has_sign ? line.front() : ' ', has_sign ? line.substr(1) : line});
  }
  return python;
}

// Where a pitfall's code stands, and how one side of it is said.
struct Shown {
  std::string place;
  std::function<void(char side)> say;
};

Shown shown_of(const Pitfall& pitfall, const report::Page& page, bool in_python) {
  if (!in_python) {
    const auto code = code_of(pitfall);
    return {name_of(pitfall.file) + ":" + std::to_string(pitfall.line),
            [code](char side) { say_code(code, side); }};
  }
  const auto python = python_code_of(page);
  if (!python)
    throw UsageError(pitfall.slug + " has no program in Python here; ./lockstep explain " +
                     pitfall.slug + " says under Fix what to call there");
  return {name_of((pitfall.file.parent_path() / "pitfalls" / python->file).lexically_normal()),
          [lines = python->lines](char side) { say_lines(lines, side); }};
}

void say_more(const Pitfall& pitfall, bool in_python, bool has_python) {
  const auto run = "  ./lockstep run " + pitfall.lesson.substr(0, 2);
  const auto start = "  ./lockstep exercise start " + pitfall.slug;
  say_heading("More");
  if (in_python) {
    std::cout << run << " --python --variant " << pitfall.slug << "\n" << start << " --python\n";
    return;
  }
  if (has_python) std::cout << "  ./lockstep explain " << pitfall.slug << " --python\n";
  std::cout << "  ./lockstep explain " << pitfall.slug << " --diff\n"
            << run << " --variant " << pitfall.slug << "\n"
            << start << "\n";
}

void explain(const Pitfall& pitfall, bool in_python) {
  const auto page = report::read_page(source_folder(), pitfall.lesson, pitfall.slug);
  const auto code = shown_of(pitfall, page, in_python);
  const auto say = [&](const char* name) {
    say_heading(name);
    say_section(page.section(name), pitfall.file.parent_path() / "pitfalls");
  };
  std::cout << coloured(wrapped(pitfall.slug + ": " + page.title, ""), Colour::bold);
  const std::string breaks = diagnose::equation_called(page.facts.at("breaks"))->sentence;
  if (!breaks.empty()) std::cout << wrapped("Breaks: " + breaks, "");
  say_heading("Broken code");
  std::cout << "  " << code.place << "\n\n";
  code.say('-');
  say("Symptom");
  say("Why");
  say("Fix");
  std::cout << "\n";
  code.say('+');
  say("In your own job");
  say("Links");
  say_more(pitfall, in_python, python_code_of(page).has_value());
}

void explain_generic(const std::string& slug, const std::vector<diagnose::Nearest>& nearest) {
  const auto docs = source_folder() / "docs";
  std::cout << coloured("A generic finding: " + slug, Colour::bold) << "\n";
  say_section(
      "No pitfall has a name for what is wrong: " + report::generic_finding(source_folder(), slug),
      docs);
  say_heading("Nearest, and what would show");
  for (const auto& one : nearest) say_section("- " + one.pitfall + ": " + one.sign, docs);
  say_heading("More");
  std::cout << "  ./lockstep explain PITFALL\n"
               "  ./lockstep compare RIGHT THIS    where this run parts from a right one\n";
}

void list_all(const std::vector<Pitfall>& pitfalls) {
  constexpr std::size_t kTitle = 41;  // the column at which titles begin
  std::string lesson;
  for (const auto& pitfall : pitfalls) {
    if (pitfall.lesson != lesson) {
      std::cout << (lesson.empty() ? "" : "\n") << coloured(pitfall.lesson, Colour::bold) << "\n";
      lesson = pitfall.lesson;
    }
    auto lines = wrapped(report::read_page(source_folder(), lesson, pitfall.slug).title,
                         std::string(kTitle, ' '));
    std::cout << lines.replace(2, pitfall.slug.size(), pitfall.slug);
  }
  std::cout << "\n./lockstep explain SLUG tells all about one of these " << pitfalls.size()
            << ".\nThe generic findings are in docs/findings.md.\n";
}

std::vector<Pitfall> of_lesson(std::vector<Pitfall> pitfalls, const std::string& lesson) {
  std::erase_if(pitfalls, [&](const Pitfall& each) { return each.lesson != lesson; });
  return pitfalls;
}

// ---- docs/symptoms.md: what people see, what to check first, and which pitfalls it may be ----

const std::string kAlso = "Also said as: ";

struct Symptom {
  std::string title;  // "It hangs at the end of an epoch"
  std::string also;   // what others call it, for the search
  std::string text;   // what to check, and what decides: Markdown
};

std::set<std::string> keywords_of(const std::string& text) {
  static const std::set<std::string> kStopWords = {
      "a",  "after", "an",  "and", "are", "at",  "be",   "but",  "do",  "for", "from",
      "i",  "in",    "is",  "it",  "its", "me",  "my",   "no",   "not", "of",  "on",
      "or", "so",    "the", "to",  "too", "was", "what", "when", "why", "with"};
  std::set<std::string> words;
  std::string word;
  for (const char c : text + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!word.empty()) {
      if (kStopWords.count(word) == 0) words.insert(word);
      word.clear();
    }
  }
  return words;
}

// "hang" of "hangs", "hanging" and "hanged".
std::string stem_of(const std::string& word) {
  constexpr std::size_t kShortest = 3;
  for (const std::string ending : {"ing", "ed", "es", "s"})
    if (word.size() >= kShortest + ending.size() && word.ends_with(ending))
      return word.substr(0, word.size() - ending.size());
  return word;
}

// Of equal stems, or one is the beginning of the other and long enough to mean the same.
bool are_alike(const std::string& one, const std::string& other) {
  constexpr std::size_t kLongEnough = 4;
  const auto a = stem_of(one), b = stem_of(other);
  const auto shared = std::min(a.size(), b.size());
  return a == b || (shared >= kLongEnough && a.compare(0, shared, b, 0, shared) == 0);
}

bool has_alike(const std::set<std::string>& words, const std::string& word) {
  return std::any_of(words.begin(), words.end(),
                     [&](const auto& each) { return are_alike(each, word); });
}

double weight_of(const Symptom& symptom, const std::string& word) {
  if (has_alike(keywords_of(symptom.title), word)) return 3;
  if (has_alike(keywords_of(symptom.also), word)) return 2;
  return has_alike(keywords_of(symptom.text), word) ? 1 : 0;
}

// Throws Error where the page is missing or has no symptom.
std::vector<Symptom> all_symptoms() {
  const auto file = source_folder() / "docs" / "symptoms.md";
  std::vector<Symptom> symptoms;
  std::istringstream lines(read_file(file));
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("## ", 0) == 0)
      symptoms.push_back({.title = line.substr(3), .also = "", .text = ""});
    else if (!symptoms.empty() && line.rfind(kAlso, 0) == 0)
      symptoms.back().also = line.substr(kAlso.size());
    else if (!symptoms.empty() && !(line.empty() && symptoms.back().text.empty()))
      symptoms.back().text += line + "\n";
  }
  if (symptoms.empty()) throw Error(file.string() + " has no symptom: no line begins with \"## \"");
  return symptoms;
}

// Those that have any of the words, the best first. A word in the title counts most, then one in `also`, then one in the
// text; the fewer symptoms have a word, the more it counts. "hangs" is found by "hang" and by "hanging".
std::vector<Symptom> matching(const std::vector<Symptom>& symptoms, const std::string& words) {
  std::vector<double> scores(symptoms.size());
  for (const auto& word : keywords_of(words)) {
    std::vector<double> weights;
    for (const auto& symptom : symptoms) weights.push_back(weight_of(symptom, word));
    const auto having = weights.size() - std::count(weights.begin(), weights.end(), 0);
    if (having == 0) continue;
    const double rarity =
        std::log(1 + static_cast<double>(symptoms.size()) / static_cast<double>(having));
    for (std::size_t i = 0; i < scores.size(); ++i) scores[i] += weights[i] * rarity;
  }
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < scores.size(); ++i)
    if (scores[i] > 0) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return scores[a] > scores[b]; });
  std::vector<Symptom> found;
  for (const auto i : order) found.push_back(symptoms[i]);
  return found;
}

// The symptom that fits best, and the names of others that may.
void explain_symptom(const std::vector<std::string>& asked) {
  constexpr std::size_t kMost = 5;
  std::string words;
  for (const auto& each : asked) words += each + " ";
  const auto all = all_symptoms();
  const auto found = matching(all, words);
  if (found.empty()) {
    std::cout << "No symptom has any of these words. There are:\n";
  } else {
    std::cout << coloured(wrapped(found.front().title, ""), Colour::bold);
    say_section(found.front().text, source_folder() / "docs");
    if (found.size() == 1) return;
    std::cout << "\nOr is it one of these?\n";
  }
  const auto& others = found.empty() ? all : found;
  const auto end = found.empty() ? all.size() : std::min(kMost, found.size());
  for (std::size_t i = found.empty() ? 0 : 1; i < end; ++i)
    std::cout << wrapped("- " + others[i].title, "  ");
}

// ---- the command ----

struct ExplainOptions {
  std::string slug;
  std::vector<std::string> symptom;
  bool python = false;
  bool diff = false;
  std::string code;
};

void explain(const Pitfall& pitfall, const ExplainOptions& options) {
  if (options.code == "broken") {
    std::cout << code_of(pitfall).broken;
  } else if (options.code == "right") {
    std::cout << code_of(pitfall).right;
  } else if (options.diff) {
    const bool for_people = isatty(STDOUT_FILENO) == 1;
    std::cout << (for_people ? readable_patch_of : patch_of)(pitfall.slug, code_of(pitfall));
  } else {
    explain(pitfall, options.python);
  }
}

}  // namespace

void add_explain_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ExplainOptions>();
  auto* command = app.add_subcommand("explain", "What a pitfall is; without a name, all pitfalls");
  auto* slug =
      command->add_option("slug", options->slug, "As ./lockstep diagnose and --variant call it");
  auto* diff = command
                   ->add_flag("--diff", options->diff,
                              "Only what differs between the broken and the right code; a patch "
                              "where it goes to a file or a pipe")
                   ->needs(slug);
  auto* code = command
                   ->add_option("--code,--variant", options->code,
                                "Only the code, whole: what --diff patches, and what that gives")
                   ->check(CLI::IsMember({"broken", "right"}))
                   ->needs(slug)
                   ->excludes(diff);
  command->add_flag("--python", options->python, "The code in Python, instead of C++")
      ->needs(slug)
      ->excludes(diff)
      ->excludes(code);
  command
      ->add_option(
          "--symptom", options->symptom,
          "Words for what you see (\"loss is nan\"): what to check, and which pitfalls fit")
      ->excludes(slug);
  command->callback([options, &exit_code] {
    const auto lessons = lessons_of_clone();
    const auto lesson = std::find_if(lessons.begin(), lessons.end(), [&](const auto& each) {
      return is_named(each, options->slug);
    });
    const auto pitfalls = find_pitfalls(source_folder());
    if (!options->symptom.empty())
      explain_symptom(options->symptom);
    else if (options->slug.empty())
      list_all(pitfalls);
    else if (lesson != lessons.end())
      list_all(of_lesson(pitfalls, lesson->name));
    else if (const auto nearest = diagnose::nearest_to(options->slug); !nearest.empty())
      explain_generic(options->slug, nearest);
    else
      explain(find_pitfall(pitfalls, options->slug, diagnose::generic_findings()), *options);
    exit_code = kOk;
  });
}

}  // namespace lockstep::course
