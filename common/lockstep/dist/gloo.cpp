// The only file that includes gloo's headers (through ProcessGroupGloo.hpp). They are of another
// version than the gloo inside torch_cpu, so nothing here may depend on a gloo class: devices are
// made by ProcessGroupGloo's own functions and only passed on. A test looks at this file's symbols.
#include <lockstep/base/environment.h>
#include <lockstep/dist/backends.h>

#include <csignal>
#include <sstream>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace lockstep::detail {

namespace {

// Gloo writes to sockets without MSG_NOSIGNAL: unless SIGPIPE is ignored, as Python does, the rank that
// comes to a peer that has gone dies of it and leaves no word.
void ignore_broken_pipes() {
  struct sigaction now {};
  if (sigaction(SIGPIPE, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) return;
  now.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &now, nullptr);
}

}  // namespace

BackendPtr make_gloo(const BackendRequest& request) {
  ignore_broken_pipes();
  auto options = c10d::ProcessGroupGloo::Options::create(request.timeout);
  if (const auto interfaces = environment("GLOO_SOCKET_IFNAME")) {
    std::istringstream names(*interfaces);
    for (std::string name; std::getline(names, name, ',');)
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
  } else if (request.loopback) {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  } else {
    options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
  }
  options->group_name = "0";
  options->threads = static_cast<int>(options->devices.size()) * 2;  // as Python
  return c10::make_intrusive<c10d::ProcessGroupGloo>(request.store, request.ranks.rank,
                                                     request.ranks.world_size, options);
}

}  // namespace lockstep::detail
