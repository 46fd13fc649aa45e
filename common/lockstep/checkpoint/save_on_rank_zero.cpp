#include <lockstep/base/error.h>
#include <lockstep/checkpoint/save_on_rank_zero.h>
#include <lockstep/dist/collective_call.h>
#include <lockstep/observe/observer.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>

namespace lockstep {
namespace {

// One message for success and failure, of one size on all ranks: a byte that says which, then text.
constexpr std::int64_t kMessage = 1024;

// Of the exception being handled.
std::string current_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    return text_of(error);
  } catch (...) {
    return "what it threw is no std::exception";
  }
}

}  // namespace

void save_on_rank_zero(c10d::ProcessGroup& group, const std::function<void()>& save, Place place) {
  tell_began("checkpoint", place);
  std::exception_ptr failure;
  at::Tensor message = at::zeros({kMessage}, at::kByte);
  if (group.getRank() == 0) {
    try {
      save();
    } catch (...) {  // whatever it is, the other ranks are waiting
      failure = std::current_exception();
      const auto text = current_text();
      auto* bytes = message.mutable_data_ptr<std::uint8_t>();
      bytes[0] = 1;
      std::memcpy(bytes + 1, text.data(), std::min<std::size_t>(text.size(), kMessage - 2));
    }
  }
  try {
    message = message.to(device_of(group));
    broadcast(group, message, 0);
  } catch (...) {
    if (!failure) throw;  // else the save's own failure is the root cause
  }
  if (failure) std::rethrow_exception(failure);
  message = message.cpu();
  const auto* bytes = message.const_data_ptr<std::uint8_t>();
  if (bytes[0] != 0)
    throw Error("rank 0 could not save: " + std::string(reinterpret_cast<const char*>(bytes) + 1));
}

}  // namespace lockstep
