#include <lockstep/base/text.h>
#include <lockstep/launch/result.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <tuple>

namespace lockstep::launch {
namespace {

enum class Weight { own, collective, ended_by_launcher, none };

Weight weight(const RankEnd& rank) {
  switch (rank.end) {
    case End::completed:
      return Weight::none;
    case End::raised:
      return rank.collective ? Weight::collective : Weight::own;
    case End::exited:
    case End::signalled:
      return Weight::own;
    case End::deadline:
      return Weight::ended_by_launcher;
    case End::stopped:  // for a reason that is elsewhere in the list, or is the user's
      return Weight::none;
  }
  return Weight::none;
}

std::string describe(const RankEnd& rank) {
  std::string text = "rank " + std::to_string(rank.rank);
  switch (rank.end) {
    case End::completed:
      return text + " completed";
    case End::raised:
      return text + " raised: " + rank.error;
    case End::exited:
      return text + " exited with code " + std::to_string(rank.exit_code) + " without a word";
    case End::signalled:
      text +=
          rank.signal == SIGSTOP || rank.signal == SIGTSTP ? " was frozen by " : " was ended by ";
      return text + signal_name(rank.signal);
    case End::deadline:
      text += " was still running at the deadline";
      break;
    case End::stopped:
      text += " was ended by the launcher";
      break;
  }
  return rank.error.empty() ? text : text + "; " + rank.error;
}

std::string indented(const std::string& text) {
  std::string result = "  ";
  for (const char c : text) {
    result += c;
    if (c == '\n') result += "  ";
  }
  return result.substr(0, result.find_last_not_of(" \n") + 1);
}

std::string seconds(std::chrono::nanoseconds time) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f s", std::chrono::duration<double>(time).count());
  return text.data();
}

}  // namespace

std::string to_string(End end) {
  switch (end) {
    case End::completed:
      return "completed";
    case End::raised:
      return "raised";
    case End::exited:
      return "exited";
    case End::signalled:
      return "signalled";
    case End::deadline:
      return "deadline";
    case End::stopped:
      return "stopped";
  }
  return "unknown";
}

std::optional<int> find_root_cause(const std::vector<RankEnd>& ranks) {
  const RankEnd* first = nullptr;
  const auto order = [](const RankEnd& rank) {
    const Weight own = weight(rank);
    // In which order ranks obeyed the launcher says nothing.
    return std::tuple(own, own == Weight::ended_by_launcher ? 0 : rank.ended_ns, rank.rank);
  };
  for (const RankEnd& rank : ranks) {
    if (weight(rank) == Weight::none) continue;
    if (first == nullptr || order(rank) < order(*first)) first = &rank;
  }
  if (first == nullptr) return std::nullopt;
  return first->rank;
}

std::string LaunchResult::summary() const {
  if (completed())
    return "all " + std::to_string(ranks.size()) + " ranks completed in " + seconds(wall);

  std::string text;
  if (interrupted != 0)
    text += "interrupted by " + signal_name(interrupted) + " after " + seconds(wall) + "\n";
  if (deadline_expired) text += "the deadline expired after " + seconds(wall) + "\n";
  if (stalled) text += "the job stalled, and was ended after " + seconds(wall) + "\n";
  const RankEnd* cause = nullptr;
  for (const RankEnd& rank : ranks)
    if (root_cause && rank.rank == *root_cause) cause = &rank;
  if (cause != nullptr) {
    // A collective's failure is rarely a rank's own.
    text += (cause->collective ? "first to complain: " : "first: ") + describe(*cause) + "\n";
    if (cause->end != End::raised && !cause->output_tail.empty())
      text += "its last output:\n" + indented(cause->output_tail) + "\n";
  }
  for (const RankEnd& rank : ranks)
    if (&rank != cause) text += describe(rank) + "\n";
  text.pop_back();
  return text;
}

}  // namespace lockstep::launch
