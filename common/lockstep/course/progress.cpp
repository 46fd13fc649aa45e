#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/base/hash.h>
#include <lockstep/base/text.h>
#include <lockstep/course/file_lock.h>
#include <lockstep/course/progress.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

namespace lockstep::course {
namespace {

constexpr int kVersion = 1;

LessonProgress lesson_of(const nlohmann::json& json) {
  return {.ran = json.value("ran", ""),
          .passed = json.value("passed", ""),
          .hints = json.value("hints", std::map<std::string, int>{}),
          .mended = json.value("mended", std::map<std::string, std::string>{})};
}

nlohmann::json json_of(const LessonProgress& done) {
  return {
      {"ran", done.ran}, {"passed", done.passed}, {"hints", done.hints}, {"mended", done.mended}};
}

void note(const std::string& text) {
  std::cerr << filled("note: " + text, 2);
}

// A name beside the file that is not taken.
std::filesystem::path put_aside(const std::filesystem::path& file) {
  for (int number = 1;; ++number) {
    const std::filesystem::path name = file.string() + ".unreadable-" + std::to_string(number);
    if (std::filesystem::exists(name)) continue;
    std::filesystem::rename(file, name);
    return name;
  }
}

}  // namespace

std::filesystem::path progress_file() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  if (state != nullptr && *state == '/')
    return std::filesystem::path(state) / "lockstep" / "progress.json";
  if (home == nullptr || *home == '\0') return {};
  return std::filesystem::path(home) / ".local" / "state" / "lockstep" / "progress.json";
}

Progress::Progress(std::filesystem::path file) : file_(std::move(file)) {
  if (read()) return;
  // Looked at again under the lock: somebody may have mended it by now.
  with_lock([&] {
    if (read()) return;
    const auto kept = put_aside(file_);
    note("your progress could not be read; it is kept as " + kept.string() + ", and begun anew");
  });
}

// Progress is a convenience: where there is no place for it the rest goes on without.
void Progress::with_lock(const std::function<void()>& act) {
  try {
    if (file_.empty()) throw Error("neither HOME nor XDG_STATE_HOME is set");
    const FileLock lock(file_.string() + ".lock");
    act();
  } catch (const std::exception& error) {
    note(std::string("your progress is not kept: ") + error.what());
  }
}

bool Progress::read() {
  entries_.clear();
  left_alone_ = false;
  std::error_code none;
  if (file_.empty() || !std::filesystem::exists(file_, none)) return true;
  try {
    const auto json = nlohmann::json::parse(read_file(file_));
    left_alone_ = json.at("schema_version").get<int>() > kVersion;
    if (left_alone_) {
      note(file_.string() +
           " is of a newer Lockstep: it is left as it is, and nothing is recorded");
      return true;
    }
    for (const auto& [name, entry] : json.at("lessons").items())
      entries_[name] = {entry.at("sources").get<std::string>(), lesson_of(entry)};
    return true;
  } catch (const nlohmann::json::exception&) {
    entries_.clear();
    return false;
  } catch (const Error& error) {
    note(std::string("your progress is not kept: ") + error.what());
    left_alone_ = true;
    return true;
  }
}

LessonProgress Progress::of(const std::string& lesson, const std::string& sources) const {
  const auto found = entries_.find(lesson);
  if (found == entries_.end()) return {};
  if (found->second.sources == sources) return found->second.done;
  const auto& done = found->second.done;
  LessonProgress of_others;
  of_others.changed = !done.ran.empty() || !done.passed.empty();
  return of_others;
}

LessonProgress Progress::change(const std::string& lesson, const std::string& sources,
                                const std::function<void(LessonProgress&)>& apply) {
  auto now = of(lesson, sources);
  apply(now);
  if (left_alone_) return now;
  with_lock([&] {
    read();
    if (left_alone_) return;
    now = of(lesson, sources);
    apply(now);
    entries_[lesson] = {sources, now};
    auto lessons = nlohmann::json::object();
    for (const auto& [name, entry] : entries_) {
      lessons[name] = json_of(entry.done);
      lessons[name]["sources"] = entry.sources;
    }
    write_file(file_,
               nlohmann::json{{"schema_version", kVersion}, {"lessons", lessons}}.dump(1) + "\n");
  });
  return now;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &local);
  return text;
}

std::string hash_of_sources(const std::filesystem::path& lesson_folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(lesson_folder))
    if (entry.path().extension() == ".cpp" || entry.path().extension() == ".h")
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::uint64_t hash = 0;
  for (const auto& file : files)
    hash = hash_text(read_file(file), hash_text(file.filename().string(), hash));
  return hexadecimal(hash);
}

}  // namespace lockstep::course
