#include <lockstep/base/error.h>
#include <lockstep/base/file.h>
#include <lockstep/flight/folder.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <map>
#include <thread>

namespace lockstep::flight {
namespace {

constexpr std::array<const char*, 2> kUsualPrefixes{"comm_lib_trace_rank_", "nccl_trace_rank_"};
constexpr std::uint64_t kLargest = std::uint64_t{1} << 30;  // 2,000 entries take a few MB
constexpr std::uint64_t kSpaces = 64;

struct Name {
  std::string prefix;
  int rank = -1;
};

std::optional<Name> parse_name(const std::filesystem::path& path) {
  const auto extension = path.extension().string();
  const bool known = extension == ".json" || extension == ".pickle" || extension == ".pkl";
  const auto name = known ? path.stem().string() : path.filename().string();
  const auto digits = name.find_last_not_of("0123456789") + 1;  // npos + 1 is 0
  Name result{name.substr(0, digits)};
  const auto* end = name.data() + name.size();
  const auto [stopped, error] = std::from_chars(name.data() + digits, end, result.rank);
  if (error != std::errc() || stopped != end) return std::nullopt;
  return result;
}

bool begins_as_dump(const std::filesystem::path& path) {
  const auto begin = InputFile(path).read(0, kSpaces);
  const auto first = begin.find_first_not_of(" \t\r\n");  // JSON may have white space before it
  return first != std::string::npos && (begin[first] == '\x80' || begin[first] == '{');
}

std::vector<DumpFile> by_rank(std::vector<DumpFile> files) {
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) {
    return std::tie(a.rank, a.path) < std::tie(b.rank, b.path);
  });
  const auto twice = std::adjacent_find(files.begin(), files.end(),
                                        [](auto& a, auto& b) { return a.rank == b.rank; });
  if (twice != files.end())
    throw Error("rank " + std::to_string(twice->rank) + " has two dumps: " + twice->path.string() +
                " and " + std::next(twice)->path.filename().string());
  return files;
}

Dump read_dump(const DumpFile& file, Names& names) try {
  const auto bytes = read_file(file.path, InputFile::Links::refuse, kLargest);
  auto dump = parse_dump(bytes, names);
  dump.rank = file.rank;
  return dump;
} catch (const std::exception& error) {
  throw Error(file.path.string() + ": " + error.what());
}

}  // namespace

std::vector<DumpFile> find_dumps(const std::filesystem::path& folder,
                                 const std::optional<std::string>& prefix) {
  std::map<std::string, std::vector<DumpFile>> found;
  for (const auto& item : std::filesystem::directory_iterator(folder)) {
    if (item.symlink_status().type() != std::filesystem::file_type::regular) continue;
    if (const auto name = parse_name(item.path()))
      found[name->prefix].push_back({name->rank, item.path()});
  }
  if (prefix) return by_rank(found[*prefix]);
  const auto is_usual = [](const auto& files) {
    return std::find(kUsualPrefixes.begin(), kUsualPrefixes.end(), files.first) !=
           kUsualPrefixes.end();
  };
  const bool any_usual = std::any_of(found.begin(), found.end(), is_usual);
  std::erase_if(found, [&](const auto& files) {
    if (any_usual) return !is_usual(files);
    return std::none_of(files.second.begin(), files.second.end(),
                        [](const DumpFile& file) { return begins_as_dump(file.path); });
  });
  if (found.empty()) return {};
  if (found.size() > 1) {
    std::string names;
    for (const auto& [name, files] : found) names += (names.empty() ? "\"" : ", \"") + name + "\"";
    throw UsageError(folder.string() + " has dumps under several names (" + names +
                     "); choose one with --dump-prefix");
  }
  return by_rank(found.begin()->second);
}

Dumps read_dumps(const std::vector<DumpFile>& files) {
  Dumps dumps;
  dumps.ranks.resize(files.size());
  std::vector<std::string> errors(files.size());
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (auto i = next++; i < files.size(); i = next++) try {
        dumps.ranks[i] = read_dump(files[i], *dumps.names);
      } catch (const std::exception& error) {
        errors[i] = error.what();
      }
  };
  {
    std::jthread second;
    if (files.size() > 1 && std::thread::hardware_concurrency() > 1) second = std::jthread(work);
    work();
  }
  const auto bad = std::count_if(errors.begin(), errors.end(), [](auto& e) { return !e.empty(); });
  for (const auto& error : errors) {
    if (error.empty()) continue;
    throw Error(error + (bad == 1   ? std::string()
                         : bad == 2 ? "; another file cannot be read either"
                                    : "; nor can " + std::to_string(bad - 1) + " other files"));
  }
  return dumps;
}

}  // namespace lockstep::flight
