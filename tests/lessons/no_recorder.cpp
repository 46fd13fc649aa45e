// Linked into a lesson's program, this takes its recorder away. The library tells the recorder nothing (the linker's
// --wrap sends observe() here), and what probes, backends and the launcher record is written nowhere (this is the
// trace's Writer, in place of the library's).
#include <lockstep/record/device_recorder.h>
#include <lockstep/record/recorder.h>
#include <lockstep/trace/writer.h>

#include <memory>

#define OBSERVE "_ZN8lockstep7observeERKSt10shared_ptrINS_8ObserverEE"
void observe_as_it_is(const std::shared_ptr<lockstep::Observer>& observer) asm("__real_" OBSERVE);
void observe_but_a_recorder(const std::shared_ptr<lockstep::Observer>& observer) asm(
    "__wrap_" OBSERVE);

void observe_but_a_recorder(const std::shared_ptr<lockstep::Observer>& observer) {
  using namespace lockstep::record;
  if (!std::dynamic_pointer_cast<Recorder>(observer) &&
      !std::dynamic_pointer_cast<DeviceRecorder>(observer))
    observe_as_it_is(observer);
}

namespace lockstep::trace {

class Writer::Impl {
 public:
  Participant participant;
  std::int64_t step = -1;
};

Writer::Writer(const std::filesystem::path&, const Participant& participant)
    : impl_(new Impl{participant}) {}
Writer::~Writer() = default;

const Participant& Writer::participant() const {
  return impl_->participant;
}
bool Writer::is_of_this_process() const {
  return true;
}
std::string Writer::name_group(const std::string& name) {
  return name;
}
void Writer::set_step(std::int64_t step) {
  impl_->step = step;
}
std::int64_t Writer::step() const {
  return impl_->step;
}
void Writer::record(const Payload&) {}
std::uint64_t Writer::enter(const Collective&) {
  return 0;  // as where there is no room
}
void Writer::leave(std::uint64_t, bool) {}

}  // namespace lockstep::trace
