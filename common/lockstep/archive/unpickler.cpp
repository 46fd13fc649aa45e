// The opcodes: those that torch.save writes at its default protocol, 2. What each does to the stack
// is told in Python's Lib/pickletools.py.
#include <lockstep/archive/objects.h>
#include <lockstep/archive/utf8.h>

#include <bit>
#include <cstdio>
#include <type_traits>
#include <unordered_map>

namespace lockstep::archive {
namespace {

using namespace unpickling;

class Unpickler {
 public:
  explicit Unpickler(std::string_view pickle) : pickle_(pickle), objects_(pickle.size()) {
    none_ = objects_.add(std::monostate{});
    false_ = objects_.add(false);
    true_ = objects_.add(true);
  }

  FileValue value() {
    return in_place([this] { return objects_.value(root()); });
  }
  Graph graph() {
    return in_place([this] {
      const auto result = root();
      return Graph{std::move(objects_), result};
    });
  }

 private:
  template <class Call>
  std::invoke_result_t<Call> in_place(const Call& call) try {
    return call();
  } catch (const Error& error) {
    throw Error("at byte " + std::to_string(opcode_at_) + " of the pickle: " + error.what());
  }

  Ref root() {
    while (true) {
      opcode_at_ = at_;
      const char opcode = take(1)[0];
      if (opcode == '.') break;
      step(opcode);
    }
    const auto result = pop();
    if (at_ != pickle_.size())
      throw Error(std::to_string(pickle_.size() - at_) + " bytes follow the end");
    return result;
  }

  void step(char opcode) {
    switch (opcode) {
      case '\x80':  // PROTO
        if (const auto version = unsigned_int(1); version != 2)
          throw Error("protocol " + std::to_string(version) +
                      "; only 2, torch.save's default, is read");
        return;
      case 'N':
        return push(none_);
      case '\x88':  // NEWTRUE
        return push(true_);
      case '\x89':  // NEWFALSE
        return push(false_);
      case 'K':  // BININT1
        return make(static_cast<std::int64_t>(unsigned_int(1)));
      case 'M':  // BININT2
        return make(static_cast<std::int64_t>(unsigned_int(2)));
      case 'J':  // BININT
        return make(std::int64_t{static_cast<std::int32_t>(unsigned_int(4))});
      case '\x8a':  // LONG1
        return make(long_int());
      case 'G':  // BINFLOAT
        return make(std::bit_cast<double>(__builtin_bswap64(unsigned_int(8))));
      case 'X':  // BINUNICODE
        return text();
      case ']':  // EMPTY_LIST
        return make(List{});
      case '}':  // EMPTY_DICT
        return make(Dict{});
      case '(':  // MARK
        objects_.charge(sizeof(std::size_t));
        return marks_.push_back(stack_.size());
      case ')':  // EMPTY_TUPLE
        return make(Tuple{});
      case 't':  // TUPLE
        return make(Tuple{pop_to_mark()});
      case '\x85':  // TUPLE1
      case '\x86':  // TUPLE2
      case '\x87':  // TUPLE3
        return make(Tuple{pop(static_cast<std::size_t>(opcode - '\x84'))});
      case 'a':  // APPEND
        return append(pop(1));
      case 'e':  // APPENDS
        return append(pop_to_mark());
      case 's':  // SETITEM
        return set_items(pop(2));
      case 'u':  // SETITEMS
        return set_items(pop_to_mark());
      case 'q':  // BINPUT
        return remember(unsigned_int(1));
      case 'r':  // LONG_BINPUT
        return remember(unsigned_int(4));
      case 'h':  // BINGET
        return recall(unsigned_int(1));
      case 'j':  // LONG_BINGET
        return recall(unsigned_int(4));
      case 'c':  // GLOBAL
        return global();
      case 'Q':  // BINPERSID
        return storage();
      case 'R': {  // REDUCE
        const auto arguments = pop();
        return push(call(objects_, pop(), arguments));
      }
      case 'b':  // BUILD
        // An OrderedDict's attributes: the _metadata of Module.state_dict(), which nothing here
        // uses.
        pop();
        container<Dict>();
        return;
      default: {
        char code[8];
        std::snprintf(code, sizeof code, "0x%02x", static_cast<unsigned char>(opcode));
        throw Error("opcode " + std::string(code) + " ('" + printable({&opcode, 1}) +
                    "') is not one that torch.save writes; refused");
      }
    }
  }

  std::string_view take(std::size_t size) {
    if (size > pickle_.size() - at_)
      throw Error("expected " + std::to_string(size) + " bytes, found the end after " +
                  std::to_string(pickle_.size() - at_));
    at_ += size;
    return pickle_.substr(at_ - size, size);
  }
  std::uint64_t unsigned_int(std::size_t size) {  // little-endian
    std::uint64_t value = 0;
    const auto bytes = take(size);
    for (std::size_t i = 0; i < size; ++i)
      value |= std::uint64_t{static_cast<std::uint8_t>(bytes[i])} << (8 * i);
    return value;
  }
  std::int64_t long_int() {
    const auto size = unsigned_int(1);
    if (size > 8)
      throw Error("an integer of " + std::to_string(size) + " bytes; 64 bits are the most");
    if (size == 0) return 0;
    const auto unused = 64 - 8 * size;  // shifted out and back, which spreads the sign
    return static_cast<std::int64_t>(unsigned_int(size) << unused) >> unused;
  }
  std::string_view line() {
    const auto end = pickle_.find('\n', at_);
    if (end == std::string_view::npos) throw Error("a name without an end");
    const auto text = take(end - at_);
    take(1);
    return text;
  }
  void text() {
    const auto value = take(unsigned_int(4));
    objects_.charge(value.size());
    make(std::string(value));
  }

  void push(Ref ref) {
    objects_.charge(sizeof(Ref));
    stack_.push_back(ref);
  }
  void make(Object object) { push(objects_.add(std::move(object))); }
  Ref pop() { return pop(1)[0]; }
  // The topmost `count`, of those above the last mark.
  std::vector<Ref> pop(std::size_t count) {
    const auto base = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() - base < count)
      throw Error("expected " + std::to_string(count) + " values on the stack, found " +
                  std::to_string(stack_.size() - base));
    std::vector<Ref> refs(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return refs;
  }
  std::vector<Ref> pop_to_mark() {
    if (marks_.empty()) throw Error("expected a mark on the stack, found none");
    auto refs = pop(stack_.size() - marks_.back());
    marks_.pop_back();
    return refs;
  }

  // The container on top of the stack, which stays there.
  template <class T>
  T& container() {
    const auto base = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() == base) throw Error("expected a container on the stack, found nothing");
    if (auto* found = std::get_if<T>(&objects_[stack_.back()])) return *found;
    throw Error(std::string("expected ") + kind(Object(T{})) + " on the stack, found " +
                kind(objects_[stack_.back()]));
  }
  void append(const std::vector<Ref>& refs) {
    objects_.charge(refs.size() * sizeof(Ref));
    auto& items = container<List>().items;
    items.insert(items.end(), refs.begin(), refs.end());
  }
  void set_items(const std::vector<Ref>& refs) {
    objects_.charge(refs.size() * sizeof(Ref));
    if (refs.size() % 2 != 0) throw Error("a key without a value");
    auto& entries = container<Dict>().entries;
    for (std::size_t i = 0; i < refs.size(); i += 2) entries.emplace_back(refs[i], refs[i + 1]);
  }

  void remember(std::uint64_t place) {
    const auto base = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() == base) throw Error("nothing on the stack to remember");
    objects_.charge(64);  // of the map
    memo_[place] = stack_.back();
  }
  void recall(std::uint64_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end())
      throw Error("refers to value " + std::to_string(place) + ", which was not there before");
    push(found->second);
  }

  void global() {
    const auto module = line();
    make(find_global(module, line()));
  }
  void storage() {
    auto object = storage_of(objects_, pop());
    const auto [place, is_new] = storages_.try_emplace(object.storage->key, object.storage);
    if (!is_new && !(*place->second == *object.storage))
      throw Error("storage \"" + printable(object.storage->key) +
                  "\" is described twice: " + std::to_string(place->second->bytes) + " bytes on " +
                  printable(place->second->location) + ", then " +
                  std::to_string(object.storage->bytes) + " bytes on " +
                  printable(object.storage->location));
    objects_.charge(sizeof(Storage) + 2 * object.storage->key.size() +
                    object.storage->location.size());
    make(std::move(object));
  }

  std::string_view pickle_;
  std::size_t at_ = 0;
  std::size_t opcode_at_ = 0;
  Objects objects_;
  Ref none_ = 0, false_ = 0, true_ = 0;
  std::vector<Ref> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Ref> memo_;
  std::unordered_map<std::string, std::shared_ptr<const Storage>> storages_;
};

}  // namespace

FileValue unpickle(std::string_view pickle) {
  return Unpickler(pickle).value();
}

unpickling::Graph unpickling::unpickle_graph(std::string_view pickle) {
  return Unpickler(pickle).graph();
}

}  // namespace lockstep::archive
