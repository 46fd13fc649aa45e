#include <lockstep/base/hash.h>
#include <lockstep/flight/names.h>

namespace lockstep::flight {

NameId Names::id(std::string_view text) {
  const Wanted wanted{hash_text(text), text};
  const std::lock_guard lock(mutex_);
  if (const auto found = ids_.find(wanted); found != ids_.end()) return found->id;
  const auto id = static_cast<NameId>(texts_.size());
  texts_.emplace_back(text);
  ids_.insert({wanted.hash, id});
  return id;
}

}  // namespace lockstep::flight
