#include <lockstep/base/error.h>
#include <lockstep/base/text.h>
#include <lockstep/train/agreement.h>
#include <torch/torch.h>

#include <map>
#include <vector>

namespace lockstep {
namespace {

std::string who_said_what(c10d::ProcessGroup& group, const at::Tensor& value, Place place) {
  std::map<std::int64_t, std::vector<int>> said;
  const auto all = all_gather(group, value, place);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    said[all[rank].item<std::int64_t>()].push_back(static_cast<int>(rank));
  std::string text;
  for (const auto& [number, ranks] : said)
    text += (text.empty() ? "" : ", ") + std::to_string(number) + " on " + ranks_text(ranks);
  return text;
}

}  // namespace

Agreement all_agree(c10d::ProcessGroup& group, std::int64_t value, Place place) {
  const auto device = device_of(group);
  // The least of v, and of ~v = -v - 1, whose least belongs to the most of v and never overflows.
  auto bounds = at::tensor({value, ~value}, at::kLong).to(device);
  all_reduce(group, bounds, c10d::ReduceOp::MIN, place);
  const auto found = bounds.cpu();
  Agreement agreement{found[0].item<std::int64_t>(), ~found[1].item<std::int64_t>(), {}};
  if (!agreement.agreed())
    agreement.disagreement = who_said_what(group, at::tensor({value}, at::kLong).to(device), place);
  return agreement;
}

Agreement all_agree(c10d::ProcessGroup& group, bool value, Place place) {
  return all_agree(group, static_cast<std::int64_t>(value), place);
}

void require_agreement(c10d::ProcessGroup& group, const std::string& what, std::int64_t value,
                       Place place) {
  const auto agreement = all_agree(group, value, place);
  if (!agreement.agreed())
    throw Error("the ranks disagree about " + what + ": " + agreement.disagreement +
                "; it must be the same on all of them");
}

double sum_over_ranks(c10d::ProcessGroup& group, double value, Place place) {
  auto sum = at::full({1}, value, at::device(device_of(group)).dtype(at::kFloat));
  all_reduce(group, sum, c10d::ReduceOp::SUM, place);
  return sum.item<double>();
}

int highest_rank_of(c10d::ProcessGroup& group, bool candidate, Place place) {
  auto rank = at::full({1}, candidate ? group.getRank() : -1,
                       at::device(device_of(group)).dtype(at::kLong));
  all_reduce(group, rank, c10d::ReduceOp::MAX, place);
  return rank.item<int>();
}

}  // namespace lockstep
