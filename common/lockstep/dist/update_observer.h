// How a program's parts tell of updates without knowing who records them.
#pragma once

#include <lockstep/dist/process_group.h>

namespace lockstep {

class UpdateObserver {
 public:
  virtual ~UpdateObserver() = default;
  // Inside join(), this rank took part in what the others did for an update, and made none itself.
  virtual void update_shadowed() = 0;
};

// What the group was decorated with, where that observes; else null. Lives as long as the group.
inline UpdateObserver* update_observer_of(c10d::ProcessGroup& group) {
  return dynamic_cast<UpdateObserver*>(group.getDefaultBackend().get());
}

}  // namespace lockstep
