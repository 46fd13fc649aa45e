#include <lockstep/lesson/outcome.h>
#include <lockstep/lesson/rank_context.h>
#include <lockstep/record/observed_backend.h>

namespace lockstep {

RankContext::RankContext(const RunSettings& settings, bool with_group) : settings_(settings) {
  // A rank of a group writes one trace; a process that drives devices writes one for each.
  const int first = with_group ? settings.rank : 0;
  const int last = with_group ? settings.rank : settings.world_size - 1;
  for (int participant = first; participant <= last; ++participant) {
    writers_.push_back(std::make_shared<trace::Writer>(
        settings.folder,
        trace::Participant{participant, settings.world_size, with_group ? "process" : "device"}));
    probes_.push_back(std::make_unique<record::Probes>(writers_.back()));
  }
  if (with_group) load_backend(settings.backend);  // before anything of torch is called
  torch::manual_seed(settings.seed);
  if (!with_group) return;
  InitOptions options;
  options.backend = settings.backend;
  options.timeout = settings.operation_timeout;
  options.decorate = [writer = writers_.front()](BackendPtr backend) {
    return record::observe(std::move(backend), writer);
  };
  group_ = init_process_group(options);
  device_ = device_of(*group_);
}

RankContext::~RankContext() = default;

record::Probes& RankContext::probes(int device) {
  return *probes_.at(device < 0 ? 0 : static_cast<std::size_t>(device));
}

void RankContext::write() {
  write_outcome(settings_.folder / ("rank_" + std::to_string(settings_.rank) + ".outcome.json"),
                outcome_);
}

void RankContext::leave() {
  probes_.clear();
  if (group_) {
    barrier(*group_);
    destroy_process_group(group_);
  }
  writers_.clear();  // the trace ends here, in order
}

}  // namespace lockstep
