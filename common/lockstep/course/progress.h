// What somebody has done of the course: a file of theirs, in their state folder ($XDG_STATE_HOME/lockstep, else
// ~/.local/state/lockstep), whichever clone it was done in.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>

namespace lockstep::course {

struct LessonProgress {
  std::string ran;                   // the day, "2026-11-22"; "" = not yet
  std::string passed;                // its exercise
  std::map<std::string, int> hints;  // given so far, by exercise
  std::map<std::string, std::string>
      mended;  // the day, by pitfall: `passed` is of the lesson's own
  bool changed =
      false;  // something was done, of sources that are others by now: ran and passed are ""
};

// Where it is kept; empty where neither XDG_STATE_HOME nor HOME is set.
std::filesystem::path progress_file();

// Of lessons by name, each with the hash of its sources as they are.
class Progress {
 public:
  // A file that holds no progress is put aside. One of a newer version is left alone, and so is one that cannot be read,
  // or is no regular file. Where nothing can be kept there is a word on stderr, and no exception.
  explicit Progress(std::filesystem::path file = progress_file());

  LessonProgress of(const std::string& lesson, const std::string& sources) const;
  // Changes one lesson's entry in the file as it is by then (other processes may change it, too), and returns it. The
  // file is whole at any moment. `apply` may be called twice, on different entries.
  LessonProgress change(const std::string& lesson, const std::string& sources,
                        const std::function<void(LessonProgress&)>& apply);

 private:
  struct Entry {
    std::string sources;  // the hash of what `done` was done with
    LessonProgress done;
  };
  bool read();  // false: what is there is no progress
  void with_lock(const std::function<void()>& act);

  std::filesystem::path file_;
  std::map<std::string, Entry> entries_;
  bool left_alone_ = false;
};

std::string today();
// Of the program's text, its parts and what it includes of its own: another hash where any of them changes.
std::string hash_of_sources(const std::filesystem::path& lesson_folder);

}  // namespace lockstep::course
