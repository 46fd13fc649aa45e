#include <lockstep/archive/pickle.h>
#include <lockstep/archive/utf8.h>

#include <bit>
#include <cstring>
#include <unordered_map>

namespace lockstep::archive {
namespace {

// Appends opcodes to a text. Names and short texts that come again are referred to (a "memo" in
// pickle's words), which makes files of many tensors a third of the size.
class Pickler {
 public:
  std::string run(const FileValue& value) {
    put("\x80\x02");  // protocol 2
    write(value, 0);
    put(".");
    return std::move(out_);
  }

 private:
  void write(const FileValue& value, int depth) {
    if (depth > kDeepest)
      throw Error("a value nested more than " + std::to_string(kDeepest) +
                  " deep cannot be saved; does it contain itself?");
    if (value.is_none()) {
      put("N");
    } else if (value.is_bool()) {
      put(value.as_bool() ? "\x88" : "\x89");
    } else if (value.is_int()) {
      integer(value.as_int());
    } else if (value.is_double()) {
      put("G");
      big_endian(std::bit_cast<std::uint64_t>(value.as_double()));
    } else if (value.is_string()) {
      text(value.as_string());
    } else if (value.is_list()) {
      put("](");
      for (const auto& item : value.as_list()) write(item, depth + 1);
      put("e");
    } else if (value.is_tuple()) {
      put("(");
      for (const auto& item : value.as_list()) write(item, depth + 1);
      put("t");
    } else if (value.is_dict()) {
      put("}(");
      for (const auto& [key, item] : value.as_dict()) {
        key.is_string() ? text(key.as_string()) : integer(key.as_int());
        write(item, depth + 1);
      }
      put("u");
    } else {
      parameter_or_tensor(value.as_tensor());
    }
  }

  // torch._utils._rebuild_parameter(tensor, requires_grad, hooks), or the tensor alone.
  void parameter_or_tensor(const TensorInFile& tensor) {
    if (!tensor.is_parameter) return this->tensor(tensor);
    global("torch._utils", "_rebuild_parameter");
    put("(");
    this->tensor(tensor);
    put(tensor.requires_grad ? "\x88" : "\x89");
    no_hooks();
    put("tR");
  }

  // torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks), or for
  // types without a storage class _v3 with the same and the dtype.
  void tensor(const TensorInFile& tensor) {
    const auto storage = storage_class(tensor.dtype);
    const bool typed = !storage.empty();
    global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    put("((");
    text("storage");
    typed ? global("torch", storage) : global("torch.storage", "UntypedStorage");
    text(tensor.storage.key);
    text(tensor.storage.location);
    integer(typed ? tensor.storage.bytes / item_size(tensor.dtype) : tensor.storage.bytes);
    put("tQ");  // the tuple is a persistent id: what the record data/<key> holds
    integer(tensor.offset);
    integers(tensor.sizes);
    integers(tensor.strides);
    put(tensor.requires_grad ? "\x88" : "\x89");
    no_hooks();
    if (!typed) global("torch", name(tensor.dtype));
    put("tR");
  }

  void no_hooks() {
    global("collections", "OrderedDict");
    put(")R");
  }

  void integers(const std::vector<std::int64_t>& values) {
    put("(");
    for (const auto value : values) integer(value);
    put("t");
  }

  void integer(std::int64_t value) {
    if (value >= 0 && value < 256) {
      put("K");
      little_endian(value, 1);
    } else if (value == static_cast<std::int32_t>(value)) {
      put("J");
      little_endian(value, 4);
    } else {
      put("\x8a\x08");  // LONG1 of 8 bytes
      little_endian(value, 8);
    }
  }

  void text(std::string_view value) {
    if (again("t" + std::string(value))) return;
    if (!is_utf8(value))
      throw Error("a text that is not UTF-8 cannot be saved; Python could not read it: \"" +
                  printable(value) + "\"");
    if (value.size() > UINT32_MAX) throw Error("a text of 4 GiB or more cannot be saved");
    put("X");
    little_endian(static_cast<std::int64_t>(value.size()), 4);
    put(value);
    remember("t" + std::string(value));
  }

  void global(std::string_view module, std::string_view member) {
    const std::string both = std::string(module) + "\n" + std::string(member) + "\n";
    if (again("g" + both)) return;
    put("c");
    put(both);
    remember("g" + both);
  }

  bool again(const std::string& what) {
    const auto place = memo_.find(what);
    if (place == memo_.end()) return false;
    put(place->second < 256 ? "h" : "j");
    little_endian(place->second, place->second < 256 ? 1 : 4);
    return true;
  }

  void remember(const std::string& what) {
    if (what.size() > 256) return;  // unlikely to come again, and costly to keep
    const auto place = static_cast<std::int64_t>(memo_.size());
    memo_.emplace(what, place);
    put(place < 256 ? "q" : "r");
    little_endian(place, place < 256 ? 1 : 4);
  }

  void put(std::string_view bytes) { out_ += bytes; }
  void little_endian(std::int64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i)
      out_ += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i));
  }
  void big_endian(std::uint64_t value) {
    for (int i = 7; i >= 0; --i) out_ += static_cast<char>(value >> (8 * i));
  }

  std::string out_;
  std::unordered_map<std::string, std::int64_t> memo_;
};

}  // namespace

std::string pickle(const FileValue& value) {
  return Pickler().run(value);
}

}  // namespace lockstep::archive
