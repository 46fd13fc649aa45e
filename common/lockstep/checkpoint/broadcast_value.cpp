#include <lockstep/base/error.h>
#include <lockstep/checkpoint/broadcast_value.h>
#include <lockstep/checkpoint/tensors.h>
#include <torch/torch.h>

#include <cstring>
#include <exception>

namespace lockstep {
namespace {

constexpr std::int64_t kFailed = -1;  // in place of a size

void broadcast_bytes(c10d::ProcessGroup& group, at::Tensor& bytes, int root) {
  auto there = bytes.to(device_of(group));
  broadcast(group, there, root);
  bytes = there.cpu();
}

std::int64_t broadcast_size(c10d::ProcessGroup& group, std::int64_t size, int root) {
  auto tensor = at::full({1}, size, at::device(device_of(group)).dtype(at::kLong));
  broadcast(group, tensor, root);
  return tensor.item<std::int64_t>();
}

void send(c10d::ProcessGroup& group, const Value& value, int root) {
  checkpoint::Storages storages(std::nullopt);
  std::string text;
  try {
    text = archive::pickle(storages.describe(value));
  } catch (...) {
    broadcast_size(group, kFailed, root);
    throw;
  }
  broadcast_size(group, static_cast<std::int64_t>(text.size()), root);
  auto bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  broadcast_bytes(group, bytes, root);
  storages.for_each([&](const archive::Storage& storage, const at::Tensor& of_storage) {
    if (storage.bytes == 0) return;
    auto here = of_storage;
    broadcast_bytes(group, here, root);
  });
}

Value receive(c10d::ProcessGroup& group, int root) {
  const auto size = broadcast_size(group, 0, root);
  if (size == kFailed)
    throw Error("rank " + std::to_string(root) + " has a value that cannot be broadcast");
  auto text = at::empty({size}, at::kByte);
  broadcast_bytes(group, text, root);
  const auto described = archive::unpickle(
      {static_cast<const char*>(text.const_data_ptr()), static_cast<std::size_t>(size)});
  // Asks for the storages in the order in which the root sends them.
  return checkpoint::attach(
      described,
      [&](const archive::Storage& storage, void* to) {
        if (storage.bytes == 0) return;
        auto bytes = at::empty({storage.bytes}, at::kByte);
        broadcast_bytes(group, bytes, root);
        std::memcpy(to, bytes.const_data_ptr(), static_cast<std::size_t>(storage.bytes));
      },
      at::Device(at::kCPU), nullptr);
}

}  // namespace

Value broadcast_value(c10d::ProcessGroup& group, const Value& value, int root) {
  if (root < 0 || root >= group.getSize())
    throw UsageError("broadcast_value: there is no rank " + std::to_string(root) + " among " +
                     std::to_string(group.getSize()));
  if (group.getRank() != root) return receive(group, root);
  send(group, value, root);
  return value;
}

}  // namespace lockstep
