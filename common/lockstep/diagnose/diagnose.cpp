#include <lockstep/diagnose/checkpoint_detectors.h>
#include <lockstep/diagnose/detectors.h>
#include <lockstep/diagnose/diagnose.h>

#include <algorithm>
#include <map>

namespace lockstep::diagnose {
namespace {

// Generic findings, and the named ones that account for each.
const std::map<std::string, std::vector<std::string>>& explained_by() {
  static const std::map<std::string, std::vector<std::string>> kExplained{
      {"replicas-diverged",
       {"local-overflow-skip", "no-gradient-sync", "forward-bypasses-wrapper",
        "no-initial-broadcast", "parameters-differ-across-ranks", "frozen-after-wrapping",
        "unused-parameter", "sync-bn-after-wrapping"}},
      {"gradient-not-the-mean",
       {"clip-before-reduction", "local-overflow-skip", "gradients-not-zeroed", "sum-not-mean",
        "double-average", "unequal-chunk-mean", "no-gradient-sync", "forward-bypasses-wrapper",
        "replica-buffers-lost", "frozen-after-wrapping", "unused-parameter",
        "sync-bn-after-wrapping"}},
      {"collective-mismatch",
       {"parameters-differ-across-ranks", "empty-shard", "padding-overruns", "uneven-batches"}},
  };
  return kExplained;
}

bool is_generic(const std::string& slug) {
  return explained_by().count(slug) > 0;
}

// Named violations, named advice, generic findings.
int place(const Finding& finding) {
  if (is_generic(finding.pitfall)) return 2;
  return finding.severity == Severity::violation ? 0 : 1;
}

}  // namespace

std::string to_string(Severity severity) {
  return severity == Severity::violation ? "violation" : "advice";
}

std::string to_string(State state) {
  switch (state) {
    case State::found:
      return "found";
    case State::clean:
      return "clean";
    case State::not_triggered:
      return "not-triggered";
    case State::not_applicable:
      return "not-applicable";
  }
  return "not-triggered";
}

const std::vector<Detector>& detectors() {
  static const std::vector<Detector> kDetectors{
      {"gradients-not-zeroed", 1, gradients_not_zeroed},
      {"replica-buffers-lost", 1, replica_buffers_lost},
      {"odd-batch-split", 1, odd_batch_split},
      {"unequal-chunk-mean", 1, unequal_chunk_mean},
      {"device-zero-bottleneck", 1, device_zero_bottleneck},
      {"dataset-unseeded", 2, dataset_unseeded},
      {"no-initial-broadcast", 1, no_initial_broadcast},
      {"no-gradient-sync", 1, no_gradient_sync},
      {"forward-bypasses-wrapper", 1, forward_bypasses_wrapper},
      {"sum-not-mean", 1, sum_not_mean},
      {"double-average", 1, double_average},
      {"parameters-differ-across-ranks", 1, parameters_differ_across_ranks},
      {"no-sharding", 2, no_sharding},
      {"evaluation-padding", 2, evaluation_padding},
      {"shuffled-evaluation", 2, shuffled_evaluation},
      {"tail-never-seen", 2, tail_never_seen},
      {"padding-overruns", 2, padding_overruns},
      {"empty-shard", 2, empty_shard},
      {"sharded-twice", 2, sharded_twice},
      {"stream-not-sharded", 2, stream_not_sharded},
      {"file-order-differs", 2, file_order_differs},
      {"missing-set-epoch", 2, missing_set_epoch},
      {"set-epoch-on-copy", 2, set_epoch_on_copy},
      {"epoch-differs-by-rank", 2, epoch_differs_by_rank},
      {"epoch-set-after-prefetch", 2, epoch_set_after_prefetch},
      {"local-batch-norm", 1, local_batch_norm},
      {"unequal-counts-in-sync", 1, unequal_counts_in_sync},
      {"buffers-not-synced", 1, buffers_not_synced},
      {"buffer-sync-inside-backward", 1, buffer_sync_inside_backward},
      {"sync-bn-after-wrapping", 1, sync_bn_after_wrapping},
      {"train-mode-differs-across-ranks", 1, train_mode_differs_across_ranks},
      {"load-without-map-location", 1, load_without_map_location},
      {"optimizer-state-on-wrong-device", 1, optimizer_state_on_wrong_device},
      {"module-prefix", 1, module_prefix},
      {"optimizer-state-missing", 1, optimizer_state_missing},
      {"scheduler-or-rng-state-missing", 1, scheduler_or_rng_state_missing},
      {"resume-repeats-epoch", 2, resume_repeats_epoch},
      {"resume-mid-epoch-replays", 2, resume_mid_epoch_replays},
      {"read-before-written", 1, read_before_written},
      {"concurrent-writers", 1, concurrent_writers},
      {"local-rank-zero-writes", 1, local_rank_zero_writes},
      {"ema-on-one-rank", 1, ema_on_one_rank},
      {"torn-checkpoint", 1, torn_checkpoint},
      {"lr-not-scaled", 1, lr_not_scaled},
      {"linear-rule-with-adam", 1, linear_rule_with_adam},
      {"no-warmup", 1, no_warmup},
      {"scheduler-stepped-per-rank", 1, scheduler_stepped_per_rank},
      {"schedule-unit-mismatch", 1, schedule_unit_mismatch},
      {"schedule-length-ignores-world-size", 1, schedule_length_ignores_world_size},
      {"uneven-batches", 2, uneven_batches},
      {"mean-of-local-means", 1, mean_of_local_means},
      {"sync-every-microbatch", 1, sync_every_microbatch},
      {"no-sync-around-backward-only", 1, no_sync_around_backward_only},
      {"accumulation-not-divided", 1, accumulation_not_divided},
      {"accumulation-off-by-one", 1, accumulation_off_by_one},
      {"mean-of-microbatch-means", 1, mean_of_microbatch_means},
      {"norm-reduced-twice", 1, norm_reduced_twice},
      {"clip-before-reduction", 1, clip_before_reduction},
      {"clip-before-unscale", 1, clip_before_unscale},
      {"local-overflow-skip", 1, local_overflow_skip},
      {"low-precision-reduction", 1, low_precision_reduction},
      {"unused-parameter", 1, unused_parameter},
      {"frozen-after-wrapping", 1, frozen_after_wrapping},
      {"optimizer-built-on-other-parameters", 1, optimizer_built_on_other_parameters},
      {"parameter-ready-twice", 1, parameter_ready_twice},
      {"zero-grad-on-bucket-view", 1, zero_grad_on_bucket_view},
      {"same-augmentation-everywhere", 2, same_augmentation_everywhere},
      {"worker-streams-copied", 2, worker_streams_copied},
      {"rank-zero-metric", 2, rank_zero_metric},
      {"local-hits-global-count", 2, local_hits_global_count},
      {"gather-loses-graph", 2, gather_loses_graph},
      {"loss-all-reduced-in-place", 1, loss_all_reduced_in_place},
      {"replicas-diverged", 1, replicas_diverged},
      {"gradient-not-the-mean", 1, gradient_not_the_mean},
      {"collective-mismatch", 0, collective_mismatch},
  };
  return kDetectors;
}

Diagnosis diagnose(const trace::Trace& trace) {
  Diagnosis diagnosis;
  for (const auto& detector : detectors())
    diagnosis.rows.push_back({detector.slug, detector.detect(trace)});

  const auto was_found = [&](const std::string& slug) {
    return std::any_of(diagnosis.rows.begin(), diagnosis.rows.end(), [&](const auto& row) {
      return row.slug == slug && row.verdict.state == State::found;
    });
  };
  for (const auto& row : diagnosis.rows) {
    const auto generic = explained_by().find(row.slug);
    if (generic != explained_by().end() &&
        std::any_of(generic->second.begin(), generic->second.end(), was_found))
      continue;
    diagnosis.findings.insert(diagnosis.findings.end(), row.verdict.findings.begin(),
                              row.verdict.findings.end());
  }
  std::stable_sort(diagnosis.findings.begin(), diagnosis.findings.end(),
                   [](const Finding& a, const Finding& b) { return place(a) < place(b); });
  return diagnosis;
}

}  // namespace lockstep::diagnose
