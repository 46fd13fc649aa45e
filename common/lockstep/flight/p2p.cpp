#include <lockstep/flight/checks.h>
#include <lockstep/flight/words.h>

#include <algorithm>
#include <charconv>
#include <map>

namespace lockstep::flight {
namespace {

// "send 0->1" and "recv 1<-0": places in the group. Nothing for what is neither.
struct Transfer {
  bool is_send = false;
  std::size_t from = 0, to = 0;
};
std::optional<Transfer> parse_transfer(std::string_view operation) {
  Transfer transfer{.is_send = operation.starts_with("send ")};
  if (!transfer.is_send && !operation.starts_with("recv ")) return std::nullopt;
  const auto* end = operation.data() + operation.size();
  auto& first = transfer.is_send ? transfer.from : transfer.to;
  auto& second = transfer.is_send ? transfer.to : transfer.from;
  auto [at, error] = std::from_chars(operation.data() + 5, end, first);
  if (error != std::errc() || end - at < 3) return std::nullopt;
  if (std::from_chars(at + 2, end, second).ec != std::errc()) return std::nullopt;
  return transfer;
}

using Channel = std::pair<std::size_t, std::size_t>;  // from, to
struct Traffic {
  std::vector<const Entry*> sends, receives;
};

diagnose::Finding unmatched(const Names& names, const Group& group, const Channel& channel,
                            const Entry* send, const Entry* receive) {
  const int from = group.members[channel.first], to = group.members[channel.second];
  const auto text = [&](const Entry* call) {
    return call_text(names, {call, 1}) + call_site(names, {call, 1});
  };
  diagnose::Finding finding;
  finding.pitfall = "no-progress";
  finding.sequence = (send != nullptr ? send : receive)->p2p_sequence;
  if (send != nullptr && receive != nullptr) {
    finding.ranks = {std::min(from, to), std::max(from, to)};
    finding.pitfall =
        send->input_sizes != receive->output_sizes ? "shape-mismatch" : "dtype-mismatch";
    finding.evidence = "rank " + std::to_string(from) + " called " + text(send) + " and rank " +
                       std::to_string(to) + " " + text(receive) + ".";
    return finding;
  }
  const bool sent = send != nullptr;
  finding.ranks = {sent ? to : from};
  finding.evidence = "rank " + std::to_string(sent ? from : to) + " called " +
                     text(sent ? send : receive) + "; rank " + std::to_string(sent ? to : from) +
                     " did not " + (sent ? "receive it." : "send it.");
  return finding;
}

}  // namespace

std::vector<diagnose::Finding> find_unmatched_p2p(const Names& names, const Group& group) {
  std::map<int, bool> whole;
  std::map<Channel, Traffic> channels;
  for (const auto& caller : group.callers) {
    whole[caller.rank] = caller.is_whole();
    for (const auto& call : caller.p2p)
      if (const auto transfer = parse_transfer(operation_of(names, call)))
        (transfer->is_send ? channels[{transfer->from, transfer->to}].sends
                           : channels[{transfer->from, transfer->to}].receives)
            .push_back(&call);
  }
  std::vector<diagnose::Finding> findings;
  for (const auto& [channel, traffic] : channels) {
    // Which send meets which receive cannot be told once some are overwritten.
    if (std::max(channel.first, channel.second) >= group.members.size() ||
        !whole[group.members[channel.first]] || !whole[group.members[channel.second]])
      continue;
    const auto count = std::max(traffic.sends.size(), traffic.receives.size());
    for (std::size_t i = 0; i < count; ++i) {
      const auto* send = i < traffic.sends.size() ? traffic.sends[i] : nullptr;
      const auto* receive = i < traffic.receives.size() ? traffic.receives[i] : nullptr;
      const bool both = send != nullptr && receive != nullptr;
      if (both && send->input_sizes == receive->output_sizes &&
          send->input_dtypes == receive->output_dtypes)
        continue;
      if (!both && (send != nullptr ? send : receive)->state == State::completed) continue;
      findings.push_back(unmatched(names, group, channel, send, receive));
      break;
    }
  }
  return findings;
}

}  // namespace lockstep::flight
