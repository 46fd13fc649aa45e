// Jobs of two ranks that are recorded without a call, and what their traces hold.
#pragma once

#include <lockstep/diagnose/diagnose.h>
#include <lockstep/record/record_into.h>
#include <lockstep/train/dataset.h>
#include <lockstep/train/distributed_sampler.h>

#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "../support/ddp_models.h"

namespace lockstep::test {

inline constexpr std::int64_t kSamples = 48, kBatch = 8;
inline constexpr int kRanks = 2;

using Job = std::function<void(const ProcessGroupPtr& group, const TensorData& data)>;

// Two ranks, each in its thread and recorded with one call; what they leave.
inline trace::Trace record(const Job& job) {
  torch::set_num_threads(1);
  const TemporaryFolder folder("lockstep-recorder");
  const auto run = [&](int rank) {
    InitOptions options{.init_method = "file://" + (folder.path() / "store").string(),
                        .rank = rank,
                        .world_size = kRanks,
                        .local_rank = rank,
                        .timeout = std::chrono::seconds(30)};
    record::record_into(options, folder.path() / "traces");
    auto group = init_process_group(options);
    job(group, synthetic(kSamples, 12, 4, 5));
    barrier(*group);
    destroy_process_group(group);
  };
  auto other = std::async(std::launch::async, run, 1);
  run(0);
  other.get();
  return trace::read(folder.path() / "traces");
}

inline DistributedSampler sampler_of(const ProcessGroupPtr& group) {
  return DistributedSampler(
      {.dataset_size = kSamples, .num_replicas = kRanks, .rank = group->getRank()});
}

template <class Event>
std::vector<Event> all(const trace::ParticipantTrace& rank) {
  std::vector<Event> found;
  for (const auto& at : rank.all<Event>()) found.push_back(*at.event);
  return found;
}

inline std::vector<std::string> names_of(const diagnose::Diagnosis& report) {
  std::vector<std::string> names;
  for (const auto& finding : report.findings) names.push_back(finding.pitfall);
  return names;
}

// A step on these samples, which the program takes out of its data by itself.
template <class Ids, class Model, class Optimizer>
void step_on(const Ids& ids, Model& model, Optimizer& optimizer, const TensorData& data) {
  const auto rows = at::tensor(std::vector<std::int64_t>(ids.begin(), ids.end()));
  optimizer.zero_grad();
  torch::cross_entropy_loss(model(data.inputs.index_select(0, rows)),
                            data.targets.index_select(0, rows))
      .backward();
  optimizer.step();
}

}  // namespace lockstep::test
