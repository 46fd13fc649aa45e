#include "renamed_run.h"

#include <lockstep/base/file.h>
#include <lockstep/trace/attempts.h>
#include <lockstep/trace/codec.h>
#include <lockstep/trace/format.h>

#include <cstring>
#include <vector>

namespace lockstep::simulated {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLater = 86'400'000'000'000;  // a day, in ns
constexpr std::int64_t kOtherProcesses = 1'000'003;

// Another hash for each, and 0 (none) for 0: multiplying by an odd number can be undone.
std::uint64_t other_hash(std::uint64_t hash) {
  return hash * 0x9E3779B97F4A7C15u;
}

struct Rename {
  Renaming& name;

  void operator()(trace::Model& model) const { parts(model.names); }
  void operator()(trace::Buffers& buffers) const { parts(buffers.names); }
  void operator()(trace::Metric& metric) const { metric.name = name(metric.name); }
  void operator()(trace::Average& average) const { average.name = name(average.name); }
  void operator()(trace::AsyncResult& result) const { result.name = name(result.name); }
  void operator()(trace::Collective& call) const { call.group = name(call.group); }
  void operator()(trace::Group& group) const { group.name = name(group.name); }
  void operator()(trace::CheckpointFile& file) const {
    parts(file.keys);
    file.file = other_hash(file.file);
  }
  void operator()(trace::DataFile& file) const { file.file = other_hash(file.file); }
  void operator()(trace::Placement& place) const {
    place.node = other_hash(place.node);
    place.processor_set = other_hash(place.processor_set);
  }
  void operator()(trace::Device& device) const { device.id = other_hash(device.id); }
  void operator()(trace::RankEnd& end) const { end.ended_ns += kLater; }
  template <class T>
  void operator()(T&) const {}  // nothing in it is a name

 private:
  void parts(std::vector<std::string>& names) const {
    for (auto& one : names) one = name.parts_of(one);
  }
};

template <class T>
void append(std::vector<std::uint8_t>& bytes, const T& value) {
  const auto* begin = reinterpret_cast<const std::uint8_t*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof value);
}

std::string encoded(trace::ParticipantTrace& of_rank) {
  std::vector<std::uint8_t> bytes(trace::kHeaderSize, 0);
  for (auto& event : of_rank.events) {
    std::vector<std::uint8_t> fields;
    trace::Encoder encoder(fields);
    if (event.is<trace::Collective>()) append(fields, event.left_ns);
    event.payload.visit([&](auto payload) { payload.visit(encoder); });
    fields.resize((fields.size() + 7) / 8 * 8, 0);
    append(bytes,
           trace::RecordHeader{
               static_cast<std::uint32_t>(sizeof(trace::RecordHeader) + fields.size()),
               static_cast<std::uint16_t>(event.payload.index()), 0, event.time_ns, event.step});
    bytes.insert(bytes.end(), fields.begin(), fields.end());
  }
  trace::FileHeader head{};
  head.magic = trace::kMagic;
  head.version = trace::kVersion;
  head.byte_order = trace::kByteOrder;
  head.rank = of_rank.participant.rank;
  head.world_size = of_rank.participant.world_size;
  of_rank.participant.kind.copy(head.kind.data(), head.kind.size() - 1);
  head.pid = of_rank.pid;
  head.started_ns = of_rank.started_ns;
  head.started_unix_ns = of_rank.started_unix_ns;
  head.length = bytes.size();
  head.closed = of_rank.closed ? 1 : 0;
  head.truncated = of_rank.truncated ? 1 : 0;
  std::memcpy(bytes.data(), static_cast<const void*>(&head), sizeof head);
  return {bytes.begin(), bytes.end()};
}

// The launcher's keeps its name. One with an extension is of a process that was alone.
std::string other_name(const fs::path& file, int rank) {
  if (!trace::is_of_a_rank(file)) return file.filename();
  const auto digits = file.stem().extension().string();  // of one that was alone: others, as many
  return "rank_" + std::to_string(1000 - 7 * rank) +
         (digits.empty() ? "" : "." + std::string(digits.rbegin(), digits.rend() - 1)) + ".trace";
}

void copy_file_renamed(const fs::path& from, const fs::path& into, Renaming& renaming) {
  auto of_rank = trace::read_file(from);
  renaming.add(std::to_string(of_rank.pid), std::to_string(of_rank.pid + kOtherProcesses));
  of_rank.pid += kOtherProcesses;
  of_rank.started_ns += kLater;
  of_rank.started_unix_ns += 2 * kLater;
  for (auto& event : of_rank.events) {
    event.time_ns += kLater;
    if (event.left_ns != 0) event.left_ns += kLater;
    event.payload = event.payload.visit([&](auto payload) {
      Rename{renaming}(payload);
      return trace::SharedPayload(std::move(payload));
    });
  }
  write_file(into / other_name(from, of_rank.participant.rank), encoded(of_rank));
}

}  // namespace

std::string Renaming::operator()(const std::string& name) {
  if (name.empty()) return name;
  const auto [at, is_new] = made_up_.emplace(name, "");
  // Letters beside the number: no made-up name is a part of another, or of anything else.
  if (is_new) at->second = "zq" + std::to_string(made_up_.size()) + "x";
  return at->second;
}

void Renaming::add(const std::string& name, const std::string& made_up) {
  made_up_.emplace(name, made_up);
}

std::string Renaming::parts_of(const std::string& name) {
  std::string renamed;
  for (std::size_t begin = 0;;) {
    const auto end = name.find('.', begin);
    renamed += (*this)(name.substr(begin, end - begin));
    if (end == std::string::npos) return renamed;
    renamed += '.';
    begin = end + 1;
  }
}

std::string Renaming::undone_in(std::string text) const {
  for (const auto& [name, made_up] : made_up_)
    for (auto at = text.find(made_up); at != std::string::npos; at = text.find(made_up, at))
      text.replace(at, made_up.size(), name), at += name.size();
  return text;
}

void copy_renamed(const fs::path& from, const fs::path& to, Renaming& renaming) {
  const auto attempts = trace::attempt_folders(from);
  for (std::size_t number = 0; number < attempts.size(); ++number) {
    const bool only = attempts[number] == from;
    const auto folder = only ? to : trace::attempt_folder(to, static_cast<int>(number));
    fs::create_directories(folder);
    for (const auto& entry : fs::directory_iterator(attempts[number]))
      if (const auto& file = entry.path();
          trace::is_of_a_rank(file) || file == trace::launcher_file(attempts[number]))
        copy_file_renamed(file, folder, renaming);
  }
}

}  // namespace lockstep::simulated
