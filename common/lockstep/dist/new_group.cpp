#include <lockstep/base/error.h>
#include <lockstep/dist/backends.h>
#include <lockstep/dist/collective_call.h>
#include <lockstep/dist/process_group.h>
#include <lockstep/observe/observer.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace lockstep {
namespace {

void check(const std::vector<int>& ranks, int world_size) {
  if (ranks.empty()) throw UsageError("new_group: a group has at least one rank");
  for (const int rank : ranks) {
    if (rank < 0 || rank >= world_size)
      throw UsageError("new_group: there is no rank " + std::to_string(rank) + " in a group of " +
                       std::to_string(world_size));
    if (std::count(ranks.begin(), ranks.end(), rank) > 1)
      throw UsageError("new_group: rank " + std::to_string(rank) + " is named twice");
  }
}

// Whose store it was, and where, for what the store itself says of a connection that is gone.
std::string lost(const StorePtr& store, const std::string& said) {
  auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
  const auto plain = prefixed ? prefixed->getUnderlyingNonPrefixStore() : store;
  const auto* served = dynamic_cast<const c10d::TCPStore*>(plain.get());
  if (served == nullptr) return said;
  return "the store at " + served->getHost() + ", port " + std::to_string(served->getPort()) +
         ", through which the ranks meet, is gone: the process that serves it (rank 0, or "
         "torchrun's agent) has ended, or cannot be reached. " +
         said;
}

}  // namespace

ProcessGroupPtr new_group(const ProcessGroupPtr& parent, const std::vector<int>& ranks,
                          const InitOptions& given, Place place) {
  const int rank = parent->getRank(), world_size = parent->getSize();
  auto numbered = given;  // by whom the group is recorded
  numbered.rank = rank;
  numbered.world_size = world_size;
  const auto options = detail::prepared(numbered);
  check(ranks, world_size);
  const auto parent_store = parent->getStore();
  std::string name;
  try {
    if (!parent_store || !parent_store->check({detail::kReachKey}))
      throw UsageError("new_group: the parent must be a group that init_process_group made");
    // Each rank counts its own calls: all come to the same number.
    name = std::to_string(parent_store->add("new_group/calls/" + std::to_string(rank), 1));
    tell_began("collective", place);
    detail::tell_group("join", name, ranks);
    const auto store =
        c10::make_intrusive<c10d::PrefixStore>("new_group/" + name + "/", parent_store);
    detail::meet(*store, rank, world_size, options.timeout,
                 "Every rank of the parent must call it, members or not. ");
    const auto own = std::find(ranks.begin(), ranks.end(), rank);
    if (own == ranks.end()) {
      detail::tell_group("joined", name, ranks);
      return nullptr;
    }
    detail::Ranks of_group;
    of_group.rank = static_cast<int>(own - ranks.begin());
    of_group.world_size = static_cast<int>(ranks.size());
    of_group.global = ranks;
    if (options.backend == "nccl") of_group.device = device_of(*parent).index();
    const bool here = parent_store->get_to_str(detail::kReachKey) == "machine";
    auto group = detail::make_group(options, of_group, here, store, name);
    detail::tell_group("joined", name, ranks);
    return group;
  } catch (const UsageError&) {
    throw;
  } catch (const UnavailableError&) {
    throw;
  } catch (const std::exception& error) {
    const bool gone = dynamic_cast<const c10::DistNetworkError*>(&error) != nullptr;
    throw CollectiveError(rank, name.empty() ? "new_group" : "new_group " + name, 0,
                          options.timeout,
                          gone ? lost(parent_store, text_of(error)) : text_of(error));
  }
}

}  // namespace lockstep
