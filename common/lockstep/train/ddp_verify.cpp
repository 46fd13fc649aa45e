#include <lockstep/base/error.h>
#include <lockstep/base/hash.h>
#include <lockstep/dist/collective_call.h>
#include <lockstep/train/ddp_parameters.h>

#include <optional>
#include <sstream>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace lockstep::detail {
namespace {

std::string describe(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes() << " " << tensor.scalar_type();
  return text.str();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Every rank writes what it has into the group's store before the check's first collective, so that
// after it, passed or failed, each rank can read the others' without waiting for anybody. Ranks
// compare hashes; the texts are read only when something differs.
class Notes {
 public:
  Notes(c10d::ProcessGroup& group, const ReducedParameters& reduced)
      : store_(group.getStore()), rank_(group.getRank()), world_size_(group.getSize()) {
    if (!store_ || world_size_ == 1) return;
    std::string shapes;  // names may differ between ranks; shapes and dtypes may not
    std::string text;
    for (std::size_t index = 0; index < reduced.tensors.size(); ++index) {
      const auto shape = describe(reduced.tensors[index]);
      shapes += shape + "\n";
      text += shape + " " + reduced.names[index] + "\n";
    }
    own_hash_ = std::to_string(hash_text(shapes));
    const auto mine = std::to_string(rank_);
    // The how-manieth DDP of the group this is; the same on all ranks, who make them in one order.
    round_ = std::to_string(store_->add("lockstep/ddp/count/" + mine, 1));
    store_->set(key("text", rank_), text);
    store_->set(key("hash", rank_), own_hash_);
  }

  // Nothing when all that is known is equal.
  std::optional<std::string> first_difference() const {
    if (!store_ || world_size_ == 1 || all_hashes_equal()) return std::nullopt;
    std::optional<int> reference;
    std::string reference_text;
    for (int rank = 0; rank < world_size_; ++rank) {
      const auto text = read("text", rank);
      if (!text) continue;  // a Python rank
      if (!reference) {
        reference = rank;
        reference_text = *text;
      } else if (const auto difference = compare(*reference, reference_text, rank, *text)) {
        return difference;
      }
    }
    return std::nullopt;
  }

 private:
  std::string key(const std::string& what, int rank) const {
    return "lockstep/ddp/" + round_ + "/" + what + "/" + std::to_string(rank);
  }

  std::optional<std::string> read(const std::string& what, int rank) const {
    if (!store_->check({key(what, rank)})) return std::nullopt;
    return store_->get_to_str(key(what, rank));
  }

  bool all_hashes_equal() const {
    std::vector<std::string> keys;
    for (int rank = 0; rank < world_size_; ++rank) keys.push_back(key("hash", rank));
    if (!store_->check(keys)) return false;
    for (const auto& hash : store_->multiGet(keys))
      if (std::string(hash.begin(), hash.end()) != own_hash_) return false;
    return true;
  }

  static std::string named(const std::vector<std::string>& lines, std::size_t index) {
    if (index >= lines.size()) return "none";
    const auto& line = lines[index];  // "[256, 784] Float fc1.weight"
    const auto name = line.rfind(' ');
    return line.substr(name + 1) + " " + line.substr(0, name);
  }

  static std::string shape(const std::string& line) { return line.substr(0, line.rfind(' ')); }

  static std::optional<std::string> compare(int first, const std::string& first_text, int second,
                                            const std::string& second_text) {
    const auto a = lines_of(first_text);
    const auto b = lines_of(second_text);
    std::size_t index = 0;
    while (index < a.size() && index < b.size() && shape(a[index]) == shape(b[index])) ++index;
    if (index == a.size() && index == b.size()) return std::nullopt;
    const auto rank_a = "rank " + std::to_string(first), rank_b = "rank " + std::to_string(second);
    std::string text =
        "DistributedDataParallel: the ranks' parameters differ. The first difference: " + rank_a +
        " has " + named(a, index) + ", " + rank_b + " has " + named(b, index);
    if (a.size() != b.size())
      text += " (" + std::to_string(a.size()) + " parameters that require a gradient on " + rank_a +
              ", " + std::to_string(b.size()) + " on " + rank_b + ")";
    return text + ". Make the same model, frozen in the same places, on every rank.";
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  int world_size_;
  std::string own_hash_;
  std::string round_;
};

}  // namespace

void verify_same_parameters(const ProcessGroupPtr& group, const ReducedParameters& reduced) {
  std::optional<std::string> difference;
  collective_call(*group, "DistributedDataParallel's comparison of parameters", [&] {
    const Notes notes(*group, reduced);
    try {
      c10d::verify_params_across_processes(group, reduced.tensors, std::nullopt);
    } catch (const std::exception&) {
      difference = notes.first_difference();
      if (!difference) throw;
    }
    // Rank 0 passes the check whatever the others have: its shapes are what they are compared with.
    if (!difference) difference = notes.first_difference();
  });
  if (difference) throw Error(*difference);
}

}  // namespace lockstep::detail
