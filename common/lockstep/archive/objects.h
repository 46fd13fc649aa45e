// What the unpickler works on: objects that refer to one another by number. References may be
// shared or run in circles, as pickle allows, without anything recursive having to be destroyed.
#pragma once

#include <lockstep/archive/pickle.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep::archive::unpickling {

using Ref = std::uint32_t;

struct List {
  std::vector<Ref> items;
};
struct Tuple {
  std::vector<Ref> items;
};
struct Dict {
  std::vector<std::pair<Ref, Ref>> entries;  // as they came; a key may come again
};

// One of the names a file may mention.
struct Global {
  enum class What : std::uint8_t {
    kOrderedDict,
    kCounter,
    kSize,
    kRebuildTensorV2,
    kRebuildTensorV3,
    kRebuildParameter,
    kStorageClass,
    kUntypedStorage,
    kDtype
  };
  What what;
  Dtype dtype = Dtype::kFloat32;  // of a storage class or a dtype
};

struct StorageObject {
  std::shared_ptr<const Storage> storage;
  std::optional<Dtype> dtype;  // none where untyped
};

using Object = std::variant<std::monostate, bool, std::int64_t, double, std::string, List, Tuple,
                            Dict, Global, StorageObject, std::shared_ptr<const TensorInFile>>;

class Objects {
 public:
  explicit Objects(std::size_t pickle_bytes);

  Ref add(Object object);
  Object& operator[](Ref ref) { return objects_[ref]; }
  const Object& operator[](Ref ref) const { return objects_[ref]; }

  // Counts memory about to be used. Throws Error when it is more than a sane pickle of this size
  // ever needs.
  void charge(std::size_t bytes);

  // The value as the library's callers see it. Throws Error for what is none (a storage, a global),
  // for keys that are neither text nor integer, and for too deep a nesting.
  FileValue value(Ref ref) { return value(ref, 0); }

 private:
  FileValue value(Ref ref, int depth);
  std::vector<FileValue> values(const std::vector<Ref>& items, int depth);
  Key key(Ref ref);

  std::vector<Object> objects_;
  std::size_t budget_;
};

const char* kind(const Object& object);  // for messages: "a tuple"

// What unpickle() reads, before values are copied out of it: for a reader that knows what it looks
// for in a file that refers to the same thing often. unpickler.cpp; throws Error as unpickle() does.
struct Graph {
  Objects objects;
  Ref root;
};
Graph unpickle_graph(std::string_view pickle);

// globals.cpp. Throws Error, naming it, for a global that is not one of those above.
Global find_global(std::string_view module, std::string_view name);
// What the global gives when applied to the tuple `arguments`: a rebuilt tensor, an empty dict.
Ref call(Objects& objects, Ref global, Ref arguments);
// What a persistent id stands for: ("storage", class, key, location, number of elements).
StorageObject storage_of(const Objects& objects, Ref id);

}  // namespace lockstep::archive::unpickling
