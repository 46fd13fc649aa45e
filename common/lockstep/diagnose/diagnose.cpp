#include <lockstep/diagnose/checkpoint_detectors.h>
#include <lockstep/diagnose/detectors.h>
#include <lockstep/diagnose/diagnose.h>
#include <lockstep/diagnose/generic.h>
#include <lockstep/diagnose/hang_detectors.h>
#include <lockstep/diagnose/launch_detectors.h>
#include <lockstep/diagnose/setup_detectors.h>

#include <algorithm>
#include <map>

namespace lockstep::diagnose {
namespace {

using Slugs = std::vector<std::string>;

// Why a job stopped, or mixed up its collectives: findings of a row follow from one of an earlier row,
// where there is one.
const std::vector<Slugs>& stops() {
  static const std::vector<Slugs> kStops{
      // What a process finds where it starts.
      {"rank-as-device-index", "visible-devices-remapped", "fixed-port", "wrong-network-interface",
       "every-rank-prepares-data", "group-never-destroyed", "small-shared-memory"},
      // Ranks that do not do the same.
      {"parameters-differ-across-ranks", "padding-overruns", "empty-shard",
       "forward-bypasses-wrapper", "buffer-sync-inside-backward", "sync-bn-after-wrapping",
       "train-mode-differs-across-ranks", "uneven-batches", "local-overflow-skip",
       "unused-parameter", "frozen-after-wrapping", "parameter-ready-twice", "gather-loses-graph"},
      {"rank-skips-init", "subgroup-created-by-members-only", "local-early-stop",
       "evaluation-through-wrapper-on-one-rank"},
      {"order-mismatch", "rank-conditional-collective", "dtype-mismatch", "reduce-op-mismatch",
       "root-mismatch", "shape-mismatch", "communicator-order"},
      // Why a rank raises, or the job ends with it.
      {"load-without-map-location", "optimizer-state-on-wrong-device", "module-prefix",
       "read-before-written", "concurrent-writers", "local-rank-zero-writes", "torn-checkpoint",
       "zero-grad-on-bucket-view", "restart-expected-by-default"},
      {"peer-dies", "one-rank-raises", "slow-rank", "rank-zero-long-work"},
      {"collective-mismatch", "no-progress"},
  };
  return kStops;
}

// Generic findings of values, and the named ones that account for each.
const std::map<std::string, std::vector<std::string>>& explained_by() {
  static const std::map<std::string, std::vector<std::string>> kExplained{
      {"configuration-differs", {}},
      {"optimizer-differs", {}},
      {"inputs-differ", {"dataset-unseeded", "parameters-differ-across-ranks"}},
      {"loss-weight-differs",
       {"sum-not-mean", "double-average", "mean-of-local-means", "unequal-chunk-mean",
        "local-overflow-skip"}},
      {"update-differs",
       {"optimizer-differs", "local-overflow-skip", "uneven-batches", "no-initial-broadcast",
        "no-gradient-sync", "forward-bypasses-wrapper", "parameters-differ-across-ranks",
        "frozen-after-wrapping", "optimizer-built-on-other-parameters", "sync-bn-after-wrapping",
        "unused-parameter", "read-before-written"}},
      {"replicas-diverged",
       {"optimizer-differs", "update-differs", "local-overflow-skip", "no-gradient-sync",
        "forward-bypasses-wrapper", "no-initial-broadcast", "parameters-differ-across-ranks",
        "frozen-after-wrapping", "unused-parameter", "sync-bn-after-wrapping",
        "read-before-written", "async-work-not-waited", "dtype-mismatch", "reduce-op-mismatch"}},
      {"gradient-not-the-mean",
       {"loss-weight-differs",
        "clip-before-reduction",
        "local-overflow-skip",
        "gradients-not-zeroed",
        "sum-not-mean",
        "double-average",
        "accumulation-not-divided",
        "accumulation-off-by-one",
        "mean-of-local-means",
        "mean-of-microbatch-means",
        "gather-loses-graph",
        "loss-all-reduced-in-place",
        "unequal-chunk-mean",
        "no-gradient-sync",
        "forward-bypasses-wrapper",
        "replica-buffers-lost",
        "frozen-after-wrapping",
        "unused-parameter",
        "sync-bn-after-wrapping",
        "last-accumulation-window-lost",
        "async-work-not-waited",
        "dtype-mismatch",
        "reduce-op-mismatch"}},
  };
  return kExplained;
}

// What collectives mixed up accounts for nothing that came before it.
bool is_in_time(const Finding& cause, const Finding& generic) {
  const bool mixed_up = cause.pitfall == "dtype-mismatch" || cause.pitfall == "reduce-op-mismatch";
  return !mixed_up || explained_by().count(generic.pitfall) == 0 || cause.step <= generic.step;
}

// Named findings that say less than another name for the same thing.
const std::map<std::string, Slugs>& included_in() {
  static const std::map<std::string, Slugs> kIncluded{
      // With one rank a node, each node's whole pass is every rank's.
      {"no-sharding", {"world-size-from-device-count"}},
      // A resumed job repeats the order of its first pass, as every pass does.
      {"resume-repeats-epoch", {"missing-set-epoch", "set-epoch-on-copy"}},
      // An epoch that is trained twice steps its schedule twice.
      {"schedule-unit-mismatch", {"resume-repeats-epoch"}},
  };
  return kIncluded;
}

bool holds(const Slugs& slugs, const std::string& slug) {
  return std::find(slugs.begin(), slugs.end(), slug) != slugs.end();
}

// The findings that would account for this one.
Slugs accounts_for(const std::string& slug) {
  const auto generic = explained_by().find(slug);
  if (generic != explained_by().end()) return generic->second;
  const auto included = included_in().find(slug);
  if (included != included_in().end()) return included->second;
  Slugs earlier;
  for (const auto& row : stops()) {
    if (holds(row, slug)) return earlier;
    earlier.insert(earlier.end(), row.begin(), row.end());
  }
  return {};
}

// Named violations, named advice, generic findings.
int place(const Finding& finding) {
  if (is_generic(finding.pitfall)) return 2;
  return finding.severity == Severity::violation ? 0 : 1;
}

}  // namespace

bool is_generic(const std::string& slug) {
  return explained_by().count(slug) > 0 || holds(stops().back(), slug);
}

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
      {"shards-overlap", 2, shards_overlap},
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
      {"no-warmup", 2, no_warmup},
      {"scheduler-stepped-per-rank", 1, scheduler_stepped_per_rank},
      {"schedule-unit-mismatch", 2, schedule_unit_mismatch},
      {"schedule-length-ignores-world-size", 1, schedule_length_ignores_world_size},
      {"rank-conditional-collective", 0, rank_conditional_collective},
      {"rank-skips-init", 1, rank_skips_init},
      {"local-early-stop", 2, local_early_stop},
      {"shape-mismatch", 0, shape_mismatch},
      {"dtype-mismatch", 0, dtype_mismatch},
      {"order-mismatch", 0, order_mismatch},
      {"reduce-op-mismatch", 0, reduce_op_mismatch},
      {"root-mismatch", 0, root_mismatch},
      {"peer-dies", 0, peer_dies},
      {"one-rank-raises", 0, one_rank_raises},
      {"slow-rank", 0, slow_rank},
      {"evaluation-through-wrapper-on-one-rank", 2, evaluation_through_wrapper_on_one_rank},
      {"subgroup-created-by-members-only", 1, subgroup_created_by_members_only},
      {"rank-zero-long-work", 2, rank_zero_long_work},
      {"async-work-not-waited", 1, async_work_not_waited},
      {"rank-as-device-index", 1, rank_as_device_index},
      {"fixed-port", 1, fixed_port},
      {"spawn-under-launcher", 1, spawn_under_launcher},
      {"world-size-from-device-count", 2, world_size_from_device_count},
      {"duplicate-gpu", 1, duplicate_gpu},
      {"device-not-set", 1, device_not_set},
      {"thread-oversubscription", 1, thread_oversubscription},
      {"every-rank-prepares-data", 2, every_rank_prepares_data},
      {"group-never-destroyed", 1, group_never_destroyed},
      {"wrong-network-interface", 1, wrong_network_interface},
      {"visible-devices-remapped", 1, visible_devices_remapped},
      {"wrong-stream", 1, wrong_stream},
      {"communicator-order", 0, communicator_order},
      {"small-shared-memory", 1, small_shared_memory},
      {"uneven-batches", 2, uneven_batches},
      {"mean-of-local-means", 1, mean_of_local_means},
      {"sync-every-microbatch", 1, sync_every_microbatch},
      {"no-sync-around-backward-only", 1, no_sync_around_backward_only},
      {"accumulation-not-divided", 1, accumulation_not_divided},
      {"accumulation-off-by-one", 1, accumulation_off_by_one},
      {"mean-of-microbatch-means", 1, mean_of_microbatch_means},
      {"last-accumulation-window-lost", 2, last_accumulation_window_lost},
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
      {"restart-without-resume", 2, restart_without_resume},
      {"restart-expected-by-default", 1, restart_expected_by_default},
      {"configuration-differs", 1, configuration_differs},
      {"optimizer-differs", 1, optimizer_differs},
      {"inputs-differ", 1, inputs_differ},
      {"loss-weight-differs", 1, loss_weight_differs},
      {"update-differs", 1, update_differs},
      {"replicas-diverged", 1, replicas_diverged},
      {"gradient-not-the-mean", 1, gradient_not_the_mean},
      {"collective-mismatch", 0, collective_mismatch},
      {"no-progress", 0, no_progress},
  };
  return kDetectors;
}

Diagnosis diagnose(const trace::Trace& trace) {
  Diagnosis diagnosis;
  for (const auto& detector : detectors()) {
    auto verdict = detector.detect(trace);
    for (auto& finding : verdict.findings)
      if (finding.after >= 0 && finding.after + 1 < finding.step)
        finding.evidence += "; it began between steps " + std::to_string(finding.after) + " and " +
                            std::to_string(finding.step);
    diagnosis.rows.push_back({detector.slug, std::move(verdict)});
  }

  // What may be a choice accounts for nothing.
  const auto is_accounted_for = [&](const Finding& finding, const Slugs& by) {
    return std::any_of(diagnosis.rows.begin(), diagnosis.rows.end(), [&](const auto& row) {
      return holds(by, row.slug) && row.verdict.state == State::found &&
             row.verdict.findings.front().severity == Severity::violation &&
             is_in_time(row.verdict.findings.front(), finding);
    });
  };
  for (const auto& row : diagnosis.rows) {
    if (row.verdict.findings.empty() ||
        is_accounted_for(row.verdict.findings.front(), accounts_for(row.slug)))
      continue;
    diagnosis.findings.insert(diagnosis.findings.end(), row.verdict.findings.begin(),
                              row.verdict.findings.end());
  }
  std::stable_sort(diagnosis.findings.begin(), diagnosis.findings.end(),
                   [](const Finding& a, const Finding& b) { return place(a) < place(b); });
  return diagnosis;
}

}  // namespace lockstep::diagnose
