#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>
#include <lockstep/dist/backends.h>
#include <lockstep/dist/collective_call.h>
#include <lockstep/dist/ends_within.h>
#include <lockstep/dist/process_group.h>
#include <lockstep/dist/rendezvous.h>
#include <lockstep/launch/launch.h>
#include <lockstep/observe/observer.h>
#include <torch/headeronly/version.h>

#include <atomic>
#include <exception>
#include <numeric>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

namespace lockstep {
namespace {

using detail::Ranks;
using Type = c10d::ProcessGroup::BackendType;

// What init_process_group calls Python's default group, so that both kinds of rank use the same
// keys.
constexpr const char* kStorePrefix = "default_pg";
constexpr const char* kGroupName = "0";
// What NCCL's watchdog needs, at most, to see that an operation is over its time, and to abort it.
constexpr std::chrono::seconds kAbortTakes{5};

std::atomic<PrepareGroup> preparation{nullptr};

std::vector<int> all_of(int world_size) {
  std::vector<int> ranks(static_cast<std::size_t>(world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Ranks resolve_ranks(const InitOptions& options) {
  const bool given = options.rank >= 0 && options.world_size >= 1;
  const auto placement =
      given && options.local_rank >= 0 ? std::nullopt : launch::placement_from_environment();
  if (!placement && !given && (options.rank >= 0 || options.world_size >= 1))
    throw UsageError("init_process_group: give rank and world_size, or neither");
  const auto place = placement.value_or(launch::Placement{});
  Ranks ranks;
  ranks.rank = options.rank >= 0 ? options.rank : place.rank;
  ranks.world_size = options.world_size >= 1 ? options.world_size : place.world_size;
  ranks.local_rank =
      options.local_rank >= 0 ? options.local_rank : (placement ? place.local_rank : ranks.rank);
  ranks.local_world_size = placement ? place.local_world_size : 0;
  if (ranks.rank >= ranks.world_size)
    throw UsageError("init_process_group: rank " + std::to_string(ranks.rank) +
                     " is outside a world of " + std::to_string(ranks.world_size));
  return ranks;
}

// Whether all ranks are on this machine, as far as can be known.
bool one_machine(const Ranks& ranks, const detail::Rendezvous& rendezvous) {
  if (ranks.local_world_size > 0) return ranks.local_world_size >= ranks.world_size;
  if (rendezvous.kind != detail::Rendezvous::Kind::tcp) return true;
  const auto& host = rendezvous.host;
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

void check_options(const InitOptions& options) {
  if (options.backend != "gloo" && options.backend != "nccl")
    throw UsageError("backend \"" + options.backend + "\" is neither gloo nor nccl");
  if (options.timeout.count() <= 0)
    throw UsageError("init_process_group: the timeout must be positive, and is " +
                     std::to_string(options.timeout.count()) + " ms");
}

// Of whom Gloo's own rendezvous has no word, "not there: rank 2, rank 3. "; empty where it cannot be told.
std::string absent_from(c10d::Store& store, const Ranks& ranks) {
  const auto key_of = [](int rank) { return "0/" + std::to_string(rank); };
  try {
    if (!store.check({key_of(ranks.rank)})) return "";
    const auto absent = detail::absent_ranks(store, ranks.world_size, key_of);
    return absent.empty() ? "" : "not there: " + detail::each_rank(absent) + ". ";
  } catch (const std::exception&) {
    return "";
  }
}

ProcessGroupPtr make_world(const InitOptions& options, const Ranks& ranks,
                           const detail::Rendezvous& rendezvous) {
  const bool here = one_machine(ranks, rendezvous);
  const auto interfaces = environment("GLOO_SOCKET_IFNAME");
  const auto reach =
      here && interfaces.value_or("lo") == "lo" ? detail::Reach::machine : detail::Reach::network;
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      kStorePrefix,
      detail::open_store(rendezvous, ranks, reach, options.timeout, options.on_store));
  auto group_store = c10::make_intrusive<c10d::PrefixStore>(std::string(kGroupName) + "/", store);
  group_store->set(detail::kReachKey, std::string(here ? "machine" : "network"));
  if (options.backend == "nccl") detail::meet_with_gpus(*group_store, ranks, options);
  auto group = detail::make_group(options, ranks, here, group_store, kGroupName);
  group->setGroupDesc(kStorePrefix);
  return group;
}

}  // namespace

ProcessGroupPtr detail::make_group(const InitOptions& options, const Ranks& ranks, bool loopback,
                                   const StorePtr& store, const std::string& name) {
  const bool nccl = options.backend == "nccl";
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, ranks.rank, ranks.world_size);
  group->setDefaultBackend(nccl ? Type::NCCL : Type::GLOO);

  BackendRequest request;
  request.store = c10::make_intrusive<c10d::PrefixStore>(nccl ? "cuda/" : "cpu/", store);
  request.ranks = ranks;
  request.loopback = loopback;
  request.timeout = options.timeout;
  request.name = name;
  request.share_gpu = options.share_gpu;
  request.high_priority_stream = options.high_priority_stream;
  BackendPtr backend;
  try {
    backend = nccl ? make_nccl(request) : make_gloo(request);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw std::runtime_error(absent_from(*request.store, ranks) + text_of(error));
  }
  if (nccl) {
    // Kept with the group: a thread's current device is cuda:0 until it sets another.
    group->setBoundDeviceId(backend->getBoundDeviceId());
  }
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15
  backend->setSequenceNumberForGroup();  // later versions count from 0 without asking
#endif
  if (options.decorate)
    backend = options.decorate(std::move(backend),
                               c10::make_intrusive<c10d::PrefixStore>("decoration/", store));

  // Gloo serves CUDA tensors too, as in Python.
  if (!nccl) group->setBackend(c10::DeviceType::CPU, Type::GLOO, backend);
  group->setBackend(c10::DeviceType::CUDA, nccl ? Type::NCCL : Type::GLOO, backend);
  group->setGroupName(name);
  return group;
}

void load_backend(const std::string& backend) {
  check_options({.backend = backend});
  if (backend != "nccl") return;
  detail::load_nccl();
  detail::require_torch_with_cuda();
}

void prepare_groups(PrepareGroup prepare) {
  preparation = prepare;
}

InitOptions detail::prepared(const InitOptions& given) {
  InitOptions options = given;
  if (const auto prepare = preparation.load()) prepare(options);
  return options;
}

void detail::tell_group(const char* action, const std::string& name,
                        const std::vector<int>& ranks) {
  tell([&](Observer& to) { to.group(action, name, ranks); });
}

ProcessGroupPtr init_process_group(const InitOptions& given, Place place) {
  check_options(given);
  Ranks ranks = resolve_ranks(given);
  const auto options = detail::prepared(given);
  const auto everybody = all_of(ranks.world_size);
  tell_began("collective", place);
  detail::tell_group("join", kGroupName, everybody);
  const auto rendezvous = detail::parse_rendezvous(options.init_method, ranks.world_size);
  if (options.backend == "nccl") ranks.device = detail::require_nccl(options, ranks);
  try {
    auto group = make_world(options, ranks, rendezvous);
    detail::tell_group("joined", kGroupName, everybody);
    return group;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw CollectiveError(
        ranks.rank, "init_process_group", 0, options.timeout,
        "of " + std::to_string(ranks.world_size) + " ranks through " + rendezvous.text +
            ". Are all running, with the same method and world size? " + text_of(error));
  }
}

void destroy_process_group(ProcessGroupPtr& group) {
  if (!group) return;
  if (group->getGroupName() == kGroupName)
    detail::tell_group("leave", kGroupName, all_of(group->getSize()));
  const auto ended = std::exchange(group, nullptr);
  if (ended->getBackendType() != Type::NCCL) return ended->shutdown();
  // Of an operation that never ends, shutdown() would wait for the end; here its timeout comes first.
  const auto backend = ended->getDefaultBackend();
  const bool done = detail::ends_within(backend->getBackendOptions()->timeout + kAbortTakes,
                                        [backend] { backend->waitForPendingWorks(); });
  const auto said = backend->getError();
  if (done && said == c10d::ErrorType::SUCCESS) return ended->shutdown();
  try {
    ended->abort();
  } catch (const std::exception&) {  // it took too long; the failure is told below
  }
  // Not over an exception that is handled here, nor over one on its way (of which current_exception() knows nothing).
  if (std::current_exception() || std::uncaught_exceptions() > 0) return;
  collective_call(*ended, "destroy_process_group", [&] { throw failed_before(said); });
}

c10::Device device_of(const c10d::ProcessGroup& group) {
  if (group.getBackendType() != Type::NCCL) return c10::Device(c10::kCPU);
  if (const auto bound = group.getBoundDeviceId()) return *bound;
  return c10::Device(c10::kCUDA, c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index());
}

}  // namespace lockstep
