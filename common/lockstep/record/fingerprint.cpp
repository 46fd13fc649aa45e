#include <lockstep/base/hash.h>
#include <lockstep/base/text.h>
#include <lockstep/record/fingerprint.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <sstream>

namespace lockstep::record {
namespace {

constexpr std::size_t kMostPairs = 4;  // told of in a message

std::string dtype_name(at::ScalarType dtype) {
  return std::string(c10::getDtypeNames(dtype).first);
}

std::string shapes_of(c10::ArrayRef<at::Tensor> tensors) {
  std::string text;
  for (const auto& tensor : tensors) {
    text += " " + dtype_name(tensor.scalar_type()) + " [";
    for (std::size_t i = 0; i < tensor.sizes().size(); ++i)
      text += (i > 0 ? ", " : "") + std::to_string(tensor.sizes()[i]);
    text += "]";
  }
  return text;
}

Part part_of(const at::Tensor& tensor) {
  return {tensor.scalar_type(), tensor.numel()};
}

std::vector<Part> parts_of(c10::ArrayRef<at::Tensor> tensors) {
  std::vector<Part> parts;
  for (const auto& tensor : tensors) parts.push_back(part_of(tensor));
  return parts;
}

// No splits: equal ones.
std::vector<Part> parts_of(const at::Tensor& tensor, const std::vector<std::int64_t>& splits,
                           int world_size) {
  const auto dtype = tensor.scalar_type();
  if (splits.empty())
    return {static_cast<std::size_t>(world_size), {dtype, tensor.numel() / world_size}};
  const auto rows = tensor.dim() > 0 ? tensor.size(0) : 1;
  const auto row = rows > 0 ? tensor.numel() / rows : 0;
  std::vector<Part> parts;
  for (const auto split : splits) parts.push_back({dtype, split * row});
  return parts;
}

// Nothing where the splits take all rows; a fault is told to all ranks in what makes this one's call
// differ.
std::string fault_of(const char* side, const at::Tensor& tensor,
                     const std::vector<std::int64_t>& splits) {
  const auto rows = tensor.dim() > 0 ? tensor.size(0) : 1;
  const auto sum = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  if (splits.empty() || sum == rows) return "";
  return std::string(" with ") + side + " splits that sum to " + std::to_string(sum) + " of " +
         std::to_string(rows) + " rows";
}

void put(std::ostream& text, const Part& part) {
  text << ' ' << static_cast<int>(part.dtype) << ' ' << part.numel;
}

void put(std::ostream& text, const std::vector<Part>& parts) {
  text << ' ' << parts.size();
  for (const auto& part : parts) put(text, part);
}

Part take_part(std::istream& text) {
  int dtype = 0;
  Part part;
  text >> dtype >> part.numel;
  part.dtype = static_cast<at::ScalarType>(dtype);
  return part;
}

std::vector<Part> take_parts(std::istream& text) {
  std::size_t count = 0;
  text >> count;
  std::vector<Part> parts;
  for (std::size_t i = 0; i < count && text; ++i) parts.push_back(take_part(text));
  return parts;
}

// What this rank means to send to, or to get from, another; nothing where its list is too short.
std::optional<Part> part(const Fingerprint& of, const std::vector<Part>& list, std::size_t peer) {
  if (list.empty()) return of.own;
  if (peer >= list.size()) return std::nullopt;
  return list[peer];
}

std::optional<Mismatch> different_calls(const std::vector<Fingerprint>& of_ranks) {
  std::map<std::string, std::vector<int>> callers;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank)
    callers[of_ranks[rank].what].push_back(static_cast<int>(rank));
  if (callers.size() == 1) return std::nullopt;
  const auto has_majority = [&](const std::vector<int>& ranks) {
    return 2 * ranks.size() > of_ranks.size();
  };
  Mismatch found;
  std::string majority;
  for (const auto& [what, ranks] : callers) {
    const auto said = ranks_text(ranks) + ": " + what;
    if (has_majority(ranks)) {
      majority = said;
      continue;
    }
    found.ranks.insert(found.ranks.end(), ranks.begin(), ranks.end());
    found.text += (found.text.empty() ? "" : "; ") + said;
  }
  if (!majority.empty()) found.text += "; " + majority;
  std::sort(found.ranks.begin(), found.ranks.end());
  found.text = "the ranks called different collectives: " + found.text;
  return found;
}

std::optional<Mismatch> different_parts(const std::vector<Fingerprint>& of_ranks) {
  const auto size = of_ranks.size();
  std::map<int, std::map<int, int>> disputes;  // [rank][the other rank]: how many
  std::string pairs;
  std::size_t count = 0;
  const auto words = [](const std::optional<Part>& part) {
    return part ? describe(*part) : std::string("nothing");
  };
  for (std::size_t from = 0; from < size; ++from)
    for (std::size_t to = 0; to < size; ++to) {
      const auto& sender = of_ranks[from];
      const auto& receiver = of_ranks[to];
      if (sender.sends.empty() && receiver.receives.empty()) continue;
      const auto sent = part(sender, sender.sends, to);
      const auto expected = part(receiver, receiver.receives, from);
      if (sent == expected) continue;
      const int a = static_cast<int>(from), b = static_cast<int>(to);
      ++disputes[a][b], ++disputes[b][a];
      if (++count <= kMostPairs)
        pairs += (count > 1 ? "; rank " : "rank ") + std::to_string(a) + " sends " + words(sent) +
                 " to rank " + std::to_string(b) + ", which expects " + words(expected);
    }
  if (count == 0) return std::nullopt;
  if (count > kMostPairs) pairs += "; and " + std::to_string(count - kMostPairs) + " more";
  Mismatch found{{}, "the parts of " + of_ranks.front().what + " do not fit together: " + pairs};
  for (const auto& [rank, others] : disputes)
    if (2 * (others.size() - others.count(rank)) > size - 1 && size > 2)
      found.ranks.push_back(rank);
  const bool minority = !found.ranks.empty() && 2 * found.ranks.size() < size;
  if (!minority) {
    found.ranks.clear();
    for (const auto& [rank, others] : disputes) found.ranks.push_back(rank);
  }
  return found;
}

}  // namespace

std::string describe(const Part& part) {
  return std::to_string(part.numel) + " x " + dtype_name(part.dtype);
}

Fingerprint fingerprint_of(const Call& call, const std::string& group, int world_size) {
  Fingerprint made;
  made.what = call.op;
  if (call.reduce != nullptr) made.what += " " + name_of(*call.reduce);
  made.in_parts = call.in_parts;
  if (!call.in_parts) {
    made.what += shapes_of(call.tensors);
    if (!call.outputs.empty()) made.what += " to" + shapes_of(call.outputs);
  } else if (call.input_splits != nullptr) {
    made.what += fault_of("input", call.tensors.front(), *call.input_splits) +
                 fault_of("output", call.outputs.front(), *call.output_splits);
    made.sends = parts_of(call.tensors.front(), *call.input_splits, world_size);
    made.receives = parts_of(call.outputs.front(), *call.output_splits, world_size);
  } else {
    if (!call.tensors.empty()) made.own = part_of(call.tensors.front());
    made.sends = parts_of(call.sends);
    made.receives = parts_of(call.receives);
  }
  if (call.root >= 0) made.what += " root " + std::to_string(call.root);
  if (!group.empty()) made.what += " in group " + group;
  return made;
}

std::uint64_t Fingerprint::hash(int world_size) const {
  if (!in_parts) return hash_text(what);
  const auto& one = !sends.empty() ? sends.front() : own;
  for (const auto* list : {&sends, &receives}) {
    if (list->empty()) continue;
    if (list->size() != static_cast<std::size_t>(world_size)) return 0;
    if (std::any_of(list->begin(), list->end(), [&](const Part& part) { return part != one; }))
      return 0;
  }
  if (sends.empty() != receives.empty() && own != one) return 0;
  return hash_text(describe(one), hash_text(what));
}

std::string Fingerprint::encode() const {
  std::ostringstream text;
  text << what << '\n' << in_parts;
  put(text, own);
  put(text, sends);
  put(text, receives);
  return text.str();
}

Fingerprint Fingerprint::decode(const std::string& text) {
  std::istringstream stream(text);
  Fingerprint made;
  std::getline(stream, made.what);
  stream >> made.in_parts;
  made.own = take_part(stream);
  made.sends = take_parts(stream);
  made.receives = take_parts(stream);
  return made;
}

std::optional<Mismatch> mismatch_of(const std::vector<Fingerprint>& of_ranks) {
  if (auto found = different_calls(of_ranks)) return found;
  return different_parts(of_ranks);
}

}  // namespace lockstep::record
