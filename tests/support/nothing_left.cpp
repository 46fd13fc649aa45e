#include "nothing_left.h"

#include <arpa/inet.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

constexpr const char* kMark = "LOCKSTEP_TEST_MARK";
constexpr const char* kSegments = "/dev/shm";
// What is killed with its parent needs a moment.
constexpr std::chrono::seconds kPatience{2};

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code error;  // what cannot be listed holds nothing of ours
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    names.insert(at->path().filename().string());
  return names;
}

std::vector<std::string> all_pids() {
  std::vector<std::string> pids;
  for (const auto& name : names_in("/proc"))
    if (name.find_first_not_of("0123456789") == std::string::npos) pids.push_back(name);
  return pids;
}

std::string command_of(const std::string& pid) {
  auto words = text_of("/proc/" + pid + "/cmdline").substr(0, 120);
  for (char& c : words)
    if (c == '\0') c = ' ';
  return words.empty() ? "ended, and not waited for" : words;
}

// Fields behind the name, which may hold anything: state, parent, ...
pid_t parent_of(const std::string& pid) {
  const auto stat = text_of("/proc/" + pid + "/stat");
  const auto bracket = stat.rfind(')');
  if (bracket == std::string::npos) return 0;
  std::istringstream fields(stat.substr(bracket + 1));
  char state = 0;
  pid_t parent = 0;
  fields >> state >> parent;
  return parent;
}

std::set<pid_t> children() {
  std::set<pid_t> found;
  siginfo_t any{};  // asked first, as nearly all cases start no process and /proc is slow to read
  if (waitid(P_ALL, 0, &any, WEXITED | WNOHANG | WNOWAIT | __WALL) != 0) return found;
  for (const auto& pid : all_pids())
    if (parent_of(pid) == getpid()) found.insert(std::stoi(pid));
  return found;
}

// As the kernel writes it: words of four bytes, each in this machine's order.
std::string address_text(const std::string& hex) {
  std::array<unsigned char, 16> bytes{};
  const std::size_t words = std::min<std::size_t>(hex.size() / 8, 4);
  for (std::size_t i = 0; i < words; ++i) {
    const auto word = static_cast<std::uint32_t>(std::stoul(hex.substr(8 * i, 8), nullptr, 16));
    std::memcpy(bytes.data() + 4 * i, &word, 4);
  }
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(words == 1 ? AF_INET : AF_INET6, bytes.data(), text.data(), text.size());
  return text.data();
}

std::set<std::string> own_listening_sockets() {
  const auto own = sockets_of("self");
  std::set<std::string> found;
  if (own.empty()) return found;
  for (const auto& socket : listening_sockets())
    if (own.count(socket.inode) != 0)
      found.insert(socket.address + " port " + std::to_string(socket.port));
  return found;
}

bool own_segments = false;

// Without those of CUDA's driver, which come with a process that uses a GPU, and go when the driver likes.
std::set<std::string> segments_now() {
  if (!own_segments) return {};
  auto found = names_in(kSegments);
  std::erase_if(found, [](const auto& name) { return name.starts_with("cuda.shm."); });
  return found;
}

template <class Set>
Set added(const Set& before, Set now) {
  for (const auto& one : before) now.erase(one);
  return now;
}

bool soon(const std::function<bool()>& condition) {
  for (const auto end = steady_clock::now() + kPatience; !condition();) {
    if (steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace

std::vector<Listening> listening_sockets() {
  std::vector<Listening> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::istringstream lines(text_of(table));
    std::string line;
    std::getline(lines, line);  // the heading
    while (std::getline(lines, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state, skipped, inode;
      fields >> number >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) fields >> skipped;
      fields >> inode;
      const auto colon = local.find(':');
      if (state != "0A" || colon == std::string::npos) continue;
      found.push_back({address_text(local.substr(0, colon)),
                       std::stoi(local.substr(colon + 1), nullptr, 16), inode});
    }
  }
  return found;
}

std::set<std::string> sockets_of(const std::string& pid) {
  std::set<std::string> inodes;
  const fs::path folder = "/proc/" + pid + "/fd";
  for (const auto& name : names_in(folder)) {
    std::error_code error;
    const auto target = fs::read_symlink(folder / name, error).string();
    if (!error && target.starts_with("socket:["))
      inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

std::map<pid_t, std::string> processes_with(const std::string& name, const std::string& value) {
  std::map<pid_t, std::string> found;
  const std::string wanted = name + "=" + value;
  for (const auto& pid : all_pids()) {
    if (std::stoi(pid) == getpid()) continue;
    std::istringstream variables(text_of("/proc/" + pid + "/environ"));
    for (std::string variable; std::getline(variables, variable, '\0');)
      if (variable == wanted) found[std::stoi(pid)] = command_of(pid);
  }
  return found;
}

namespace {

// Whether this process now has a /dev/shm of its own.
bool leave_shared_memory() {
  struct statvfs usual {};
  if (statvfs(kSegments, &usual) != 0) return false;
  const auto own_id = [](id_t id) { return std::to_string(id) + ' ' + std::to_string(id) + " 1"; };
  if (unshare(CLONE_NEWNS) != 0) {
    // Who is not root has the right in a user namespace only, in which all keep their names.
    const auto user = own_id(geteuid()), group = own_id(getegid());
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << user;
    std::ofstream("/proc/self/gid_map") << group;
  }
  const auto size = "size=" + std::to_string(usual.f_blocks * usual.f_frsize);
  return mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", kSegments, "tmpfs", MS_NOSUID | MS_NODEV, size.c_str()) == 0;
}

}  // namespace

void own_shared_memory() {
  // A namespace cannot be left again, and one may be made in which nothing is allowed: a child tries first.
  const pid_t child = fork();
  if (child == 0) _exit(leave_shared_memory() ? 0 : 1);
  int status = -1;
  own_segments =
      child > 0 && waitpid(child, &status, 0) == child && status == 0 && leave_shared_memory();
}

bool has_own_shared_memory() {
  return own_segments;
}

void NothingLeft::OnTestStart(const ::testing::TestInfo&) {
  static int tests = 0;
  const char* usual = std::getenv("TMPDIR");
  usual_folder_ = usual == nullptr ? std::nullopt : std::optional<std::string>(usual);
  auto folder = (fs::temp_directory_path() / "lockstep-test-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) ADD_FAILURE() << "cannot make " << folder;
  folder_ = folder;
  setenv("TMPDIR", folder.c_str(), 1);
  setenv(kMark, (std::to_string(getpid()) + "-" + std::to_string(++tests)).c_str(), 1);
  segments_ = segments_now();
  sockets_ = own_listening_sockets();
  children_ = children();
}

void NothingLeft::OnTestEnd(const ::testing::TestInfo&) {
  const std::string mark = std::getenv(kMark);
  std::map<pid_t, std::string> processes;
  const auto look = [&] {
    processes = processes_with(kMark, mark);
    for (const pid_t pid : added(children_, children()))
      processes[pid] = command_of(std::to_string(pid));
    return processes.empty();
  };
  soon(look);
  for (const auto& [pid, command] : processes) {
    ADD_FAILURE() << "the test leaves process " << pid << ": " << command;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);  // of a child of its own
  }
  std::set<std::string> sockets;
  soon([&] { return (sockets = added(sockets_, own_listening_sockets())).empty(); });
  for (const auto& socket : sockets)
    ADD_FAILURE() << "the test leaves a socket that listens on " << socket;
  std::set<std::string> segments;
  soon([&] { return (segments = added(segments_, segments_now())).empty(); });
  for (const auto& segment : segments) {
    ADD_FAILURE() << "the test leaves shared memory: " << segment;
    fs::remove(fs::path(kSegments) / segment);
  }
  for (const auto& name : names_in(folder_))
    ADD_FAILURE() << "the test leaves a temporary file: " << name;
  std::error_code error;
  fs::remove_all(folder_, error);
  if (usual_folder_)
    setenv("TMPDIR", usual_folder_->c_str(), 1);
  else
    unsetenv("TMPDIR");
  unsetenv(kMark);
}

}  // namespace lockstep::test
