#include <lockstep/diagnose/nearest.h>

#include <map>

namespace lockstep::diagnose {
namespace {

// By the generic finding: the pitfall, and its sign.
using Table = std::map<std::string, std::vector<std::pair<std::string, std::string>>>;

const Table& table() {
  static const Table nearest = {
      {"clipped-before-backward",
       {{"clip-before-unscale", "a GradScaler's gradients are clipped before they are unscaled"},
        {"clip-before-reduction", "each rank clips its own gradient, before the reduction"},
        {"norm-reduced-twice", "the norm that it clips by is summed over the ranks"}}},
      {"collective-mismatch",
       {{"order-mismatch", "the ranks make the same calls, in another order"},
        {"rank-conditional-collective", "one rank makes a call that the others leave out"},
        {"shape-mismatch", "the ranks make the same call, with tensors of other sizes"}}},
      {"configuration-differs",
       {{"parameters-differ-across-ranks", "parameters have other names or sizes on one rank"},
        {"train-mode-differs-across-ranks", "modules are alike, and one rank's do not train"},
        {"uneven-batches", "a rank draws a batch more than the others"}}},
      {"evaluation-not-reduced",
       {{"rank-zero-metric", "rank 0 tells its own figure as that of all samples"},
        {"local-hits-global-count", "a rank's hits are divided by the samples of all ranks"},
        {"evaluation-padding", "figures are joined, and some samples count twice in them"}}},
      {"every-rank-raises",
       {{"every-rank-prepares-data", "the ranks write the same files, and meet there"},
        {"visible-devices-remapped", "a rank asks for a device that it is not shown"},
        {"one-rank-raises", "one rank raises, and the others' exceptions are of a collective"}}},
      {"gradient-not-the-mean",
       {{"sum-not-mean", "it is W times the mean"},
        {"double-average", "it is the mean, divided by W once more"},
        {"no-gradient-sync", "it is each rank's own gradient"}}},
      {"gradients-cleared-too-early",
       {{"accumulation-off-by-one", "the first update alone has too few microbatches"},
        {"last-accumulation-window-lost", "an epoch's last microbatches alone are lost"},
        {"accumulation-not-divided", "no gradient is lost, and their sum is not divided"}}},
      {"inputs-differ",
       {{"file-order-differs", "a file has another index on one rank"},
        {"dataset-unseeded", "an index is another sample on each rank"},
        {"uneven-batches", "a rank draws a batch more than the others"}}},
      {"loaded-its-own-weights",
       {{"module-prefix", "the names in the file have `module.` before them, or lack it"},
        {"read-before-written", "a rank loads what an earlier save wrote"},
        {"ema-on-one-rank", "averaged weights are another rank's, or the first ones"}}},
      {"loss-weight-differs",
       {{"mean-of-local-means", "ranks have different numbers of samples, and equal weight"},
        {"mean-of-microbatch-means", "a rank's own microbatches differ in size"},
        {"accumulation-not-divided", "every rank's loss is too great, by the same factor"}}},
      {"losses-differ",
       {{"train-mode-differs-across-ranks", "one rank's model does not train: it has no dropout"},
        {"file-order-differs", "a file has another index on one rank, as where labels stay"},
        {"no-gradient-sync", "gradients stay apart, then parameters, then losses"}}},
      {"no-progress",
       {{"rank-skips-init", "a rank never joined the group"},
        {"rank-conditional-collective", "one rank makes a call that the others leave out"},
        {"slow-rank", "the missing rank comes, after the others have given up"}}},
      {"optimizer-differs",
       {{"optimizer-state-missing", "options are equal, and after a resume its state is gone"},
        {"scheduler-or-rng-state-missing", "after a resume the schedule begins anew"},
        {"optimizer-built-on-other-parameters", "it holds tensors that are not the model's"}}},
      {"outside-parameters-differ",
       {{"ema-on-one-rank", "averaged weights follow the model on one rank alone"},
        {"no-initial-broadcast", "the model's own parameters differ before the first update"},
        {"frozen-after-wrapping", "a parameter was frozen or freed after the model was wrapped"}}},
      {"parameters-not-updated",
       {{"optimizer-built-on-other-parameters", "the optimizer moves tensors of another model"},
        {"unused-parameter", "on some rank the parameters get no gradient at all"},
        {"frozen-after-wrapping", "they were frozen or freed after the model was wrapped"}}},
      {"replicas-diverged",
       {{"no-initial-broadcast", "parameters differ before the first update"},
        {"no-gradient-sync", "each rank updates with its own gradient"},
        {"local-overflow-skip", "one rank leaves an update out, after a batch that overflowed"}}},
      {"same-gradients",
       {{"no-sharding", "the ranks draw the same indices"},
        {"stream-not-sharded", "each rank reads the whole stream"},
        {"loss-all-reduced-in-place", "the loss is averaged over the ranks before its backward"}}},
      {"same-inputs",
       {{"no-sharding", "the ranks draw the same indices"},
        {"stream-not-sharded", "each rank reads the whole stream"},
        {"silent-single-process", "each process has a world size of 1"}}},
      {"same-random-draws",
       {{"same-augmentation-everywhere", "the generators are equal from the start"},
        {"worker-streams-copied", "a rank's own loader workers draw the same"},
        {"scheduler-or-rng-state-missing", "after a resume they are as at the job's start"}}},
      {"samples-differ-across-ranks",
       {{"dataset-unseeded", "the data set is drawn anew on each rank, so all samples differ"},
        {"file-order-differs", "a rank has the same samples, under other indices"},
        {"every-rank-prepares-data", "the ranks write the files that the others read"}}},
      {"schedule-ends-elsewhere",
       {{"schedule-length-ignores-world-size", "the schedule is W times as long as the run"},
        {"scheduler-stepped-per-rank", "the schedule is stepped W times an update"},
        {"schedule-unit-mismatch", "it is made for updates, and stepped once an epoch"}}},
      {"shares-of-data-overlap",
       {{"shards-overlap", "the ranks' samplers have other seeds"},
        {"world-size-from-device-count", "the sampler's num_replicas is not the world size"},
        {"no-sharding", "the ranks draw the same indices"}}},
      {"training-in-evaluation-mode",
       {{"train-mode-differs-across-ranks", "one rank alone does not train"},
        {"evaluation-in-train-mode", "the other way round: it evaluates in training mode"},
        {"buffers-not-synced", "running statistics differ between ranks"}}},
      {"update-differs",
       {{"local-overflow-skip", "one rank leaves an update out, after a batch that overflowed"},
        {"optimizer-state-missing", "after a resume the optimizer's state is gone"},
        {"scheduler-stepped-per-rank", "the schedule is stepped W times an update"}}},
  };
  return nearest;
}

}  // namespace

std::vector<Nearest> nearest_to(const std::string& generic) {
  std::vector<Nearest> nearest;
  if (const auto found = table().find(generic); found != table().end())
    for (const auto& [pitfall, sign] : found->second)
      nearest.push_back({.pitfall = pitfall, .sign = sign});
  return nearest;
}

}  // namespace lockstep::diagnose
