#include <lockstep/checkpoint/broadcast_value.h>
#include <lockstep/checkpoint/joined_optimizer.h>
#include <lockstep/checkpoint/optimizer_state.h>
#include <lockstep/train/agreement.h>

namespace lockstep {

JoinedOptimizer::JoinedOptimizer(torch::optim::Optimizer& optimizer, ProcessGroupPtr group)
    : optimizer_(optimizer), group_(std::move(group)) {}

void JoinedOptimizer::post_hook(bool is_last_joiner) {
  const int root = highest_rank_of(*group_, is_last_joiner);
  const bool sends = group_->getRank() == root;
  const auto state = broadcast_value(*group_, sends ? state_dict(optimizer_) : Value(), root);
  if (!sends) load_state_dict(optimizer_, state);
}

}  // namespace lockstep
