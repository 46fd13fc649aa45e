#include <fcntl.h>
#include <lockstep/archive/checkpoint_folder.h>
#include <lockstep/base/error.h>
#include <lockstep/base/file.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>

namespace lockstep::archive {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "checkpoint_";
constexpr std::string_view kSuffix = ".pt";

fs::path name_of(std::int64_t number) {
  return std::string(kPrefix) + std::to_string(number) + std::string(kSuffix);
}

std::optional<std::int64_t> number_of(const std::string& name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  std::int64_t number = 0;
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size() - kSuffix.size();
  const auto [stop, error] = std::from_chars(begin, end, number);
  if (error != std::errc{} || stop != end || number < 0) return std::nullopt;
  return number;
}

}  // namespace

CheckpointFolder::CheckpointFolder(fs::path folder, const CheckpointFolderOptions& options)
    : folder_(fs::absolute(std::move(folder))),
      options_(options),
      system_(options.system ? *options.system : real_system()) {
  if (options_.keep < 0)
    throw UsageError("CheckpointFolder: keep must be 0 (all) or more, found " +
                     std::to_string(options_.keep));
}

CheckpointFolder::~CheckpointFolder() {
  if (lock_fd_ >= 0) system_.close(lock_fd_);
}

fs::path CheckpointFolder::save(std::int64_t number, const std::function<void(NewFile&)>& fill) {
  if (number < 0)
    throw UsageError("CheckpointFolder::save: a checkpoint's number is 0 or more, found " +
                     std::to_string(number));
  lock();
  const auto path = folder_ / name_of(number);
  NewFile file(path, own_file());
  fill(file);
  file.commit();
  point_at(path);
  remove_leftovers(folder_, system_);
  remove_all_but_newest(path);
  return path;
}

void CheckpointFolder::lock() {
  if (lock_fd_ >= 0) return;
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error)
    throw Error("cannot save to " + folder_.string() + ": it cannot be made: " + error.message());
  const auto name = folder_ / ".lock";
  const int fd = system_.open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd < 0)
    throw Error("cannot save to " + folder_.string() + ": open of " + name.string() + ": " +
                std::strerror(errno));
  if (try_lock(fd, system_) == Lock::kBusy) {
    system_.close(fd);
    throw Error("cannot save to " + folder_.string() + ": another job saves there (it holds " +
                name.string() + "). Give each job a folder of its own, and let one rank save.");
  }
  lock_fd_ = fd;
}

// What is here under a checkpoint's name, or as `latest`, is this folder's own: a link there is
// replaced. `latest` as a link to a checkpoint must not have that one overwritten.
NewFileOptions CheckpointFolder::own_file() const {
  return {.sync = options_.sync, .follow_link = false, .system = options_.system};
}

void CheckpointFolder::point_at(const fs::path& checkpoint) {
  NewFile pointer(folder_ / "latest", own_file());
  pointer.append(checkpoint.filename().string() + "\n");
  pointer.commit();
}

// Only once `latest` points at `newest`: until then it points at one of those that go here.
void CheckpointFolder::remove_all_but_newest(const fs::path& newest) {
  if (options_.keep == 0) return;
  const auto checkpoints = all();
  const auto place = std::find(checkpoints.begin(), checkpoints.end(), newest);
  for (auto at = checkpoints.begin(); at != checkpoints.end(); ++at)
    if ((at > place || place - at >= options_.keep) && system_.unlink(at->c_str()) != 0 &&
        errno != ENOENT)
      throw Error("saved " + newest.string() + ", but " + at->string() +
                  ", which is not needed any more, cannot be removed: " + std::strerror(errno));
}

std::optional<fs::path> CheckpointFolder::latest() const {
  const auto pointer = folder_ / "latest";
  if (!fs::exists(pointer)) {
    const auto checkpoints = all();
    if (checkpoints.empty()) return std::nullopt;
    return checkpoints.back();
  }
  auto name = read_file(pointer);
  if (name.ends_with('\n')) name.pop_back();
  // Only a name, so that a pointer from elsewhere cannot lead out of the folder.
  if (!number_of(name) || !fs::is_regular_file(folder_ / name))
    throw Error(pointer.string() + " points at \"" + name.substr(0, 80) +
                "\", which is no checkpoint in its folder. Write the name of one of those that are "
                "there into it, or remove it: then the one with the highest number counts.");
  return folder_ / name;
}

std::vector<fs::path> CheckpointFolder::all() const {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(folder_, absent))
    if (const auto number = number_of(entry.path().filename().string()))
      found.emplace_back(*number, entry.path());
  std::sort(found.begin(), found.end());
  std::vector<fs::path> paths;
  for (auto& [number, path] : found) paths.push_back(std::move(path));
  return paths;
}

}  // namespace lockstep::archive
