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
       {{"parameters-differ-across-ranks", "parameters have other sizes or dtypes on one rank"},
        {"train-mode-differs-across-ranks", "one rank trains in evaluation mode"},
        {"uneven-batches", "a rank draws a batch more than the others"}}},
      {"evaluation-not-reduced",
       {{"rank-zero-metric", "rank 0 prints its own figure as that of all samples"},
        {"local-hits-global-count", "a rank's hits are divided by the samples of all ranks"},
        {"evaluation-padding", "figures are joined, and some samples count twice in them"}}},
      {"every-rank-raises",
       {{"module-prefix", "the names in the file have `module.` before them, or lack it"},
        {"parameter-ready-twice", "backward says that a parameter was marked ready twice"},
        {"unused-parameter", "forward says that the last reduction was not finished"}}},
      {"gradient-not-the-mean",
       {{"gradients-not-zeroed", "it still holds the gradient of the last update"},
        {"clip-before-reduction", "it is the mean of gradients that each rank has clipped"},
        {"no-gradient-sync", "it is each rank's own gradient, and parameters stay apart"}}},
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
        {"ema-on-one-rank", "averaged weights differ between ranks whose weights are equal"}}},
      {"loss-weight-differs",
       {{"mean-of-local-means", "ranks have different numbers of samples, and equal weight"},
        {"mean-of-microbatch-means", "a rank's own microbatches differ in size"},
        {"double-average", "a loss is divided by W, and the engine divides again"}}},
      {"losses-differ",
       {{"train-mode-differs-across-ranks",
         "one rank trains in evaluation mode, so without dropout"},
        {"file-order-differs", "one rank has the samples in another order than the labels"},
        {"no-gradient-sync", "gradients stay apart, then parameters, then losses"}}},
      {"no-progress",
       {{"rank-skips-init", "a rank never joined the group"},
        {"rank-conditional-collective", "one rank makes a call that the others leave out"},
        {"one-rank-raises", "a rank left by an exception of its own"}}},
      {"not-finite",
       {{"low-precision-reduction", "every rank's own gradient is finite, and their sum is not"},
        {"empty-shard", "a rank's batch has no sample, and its mean is 0 / 0"},
        {"no-warmup", "the loss grows in the steps before, under a rate scaled by W"}}},
      {"optimizer-differs",
       {{"parameters-differ-across-ranks", "one rank has built another model, with other groups"},
        {"read-before-written", "a rank loads an older checkpoint, with its options"},
        {"scheduler-or-rng-state-missing", "after a resume the schedule begins anew"}}},
      {"optimizer-without-schedule",
       {{"schedule-unit-mismatch", "it is made for updates, and stepped once an epoch"},
        {"optimizer-built-on-other-parameters", "an optimizer moves parameters that nothing uses"},
        {"scheduler-stepped-per-rank", "the schedule is stepped W times an update"}}},
      {"outside-parameters-differ",
       {{"ema-on-one-rank", "averaged weights follow the model on one rank alone"},
        {"no-initial-broadcast", "the model's own parameters differ before the first update"},
        {"frozen-after-wrapping",
         "a parameter was frozen or unfrozen after the model was wrapped"}}},
      {"parameters-not-updated",
       {{"optimizer-built-on-other-parameters", "no parameter of the model moves in any update"},
        {"unused-parameter", "on some rank the parameters get no gradient at all"},
        {"frozen-after-wrapping", "they were frozen or unfrozen after the model was wrapped"}}},
      {"replicas-diverged",
       {{"no-initial-broadcast", "parameters differ before the first update"},
        {"no-gradient-sync", "each rank updates with its own gradient"},
        {"forward-bypasses-wrapper", "the module is called, and not its wrapper, which reduces"}}},
      {"same-gradients",
       {{"no-sharding", "the ranks draw the same indices"},
        {"stream-not-sharded", "each rank reads the whole stream"},
        {"world-size-from-device-count", "each node goes through all of the data"}}},
      {"same-inputs",
       {{"no-sharding", "the ranks draw the same indices"},
        {"stream-not-sharded", "each rank reads the whole stream"},
        {"world-size-from-device-count", "each node goes through all of the data"}}},
      {"same-random-draws",
       {{"same-augmentation-everywhere", "the ranks' random generators are equal from the start"},
        {"worker-streams-copied", "a rank's own loader workers draw the same"},
        {"scheduler-or-rng-state-missing",
         "after a resume random generators are as at the job's start"}}},
      {"samples-differ-across-ranks",
       {{"dataset-unseeded", "the data set is drawn anew on each rank, so all samples differ"},
        {"file-order-differs", "a rank has the same samples, under other indices"},
        {"every-rank-prepares-data", "the ranks write the files that the others read"}}},
      {"schedule-begins-anew",
       {{"scheduler-or-rng-state-missing", "the schedule's state was saved, and not loaded"},
        {"resume-repeats-epoch", "the pass begins anew, too"},
        {"optimizer-state-missing", "the optimizer's state is not the saved one either"}}},
      {"schedule-ends-elsewhere",
       {{"schedule-length-ignores-world-size", "the schedule is W times as long as the run"},
        {"scheduler-stepped-per-rank", "the schedule is stepped W times an update"},
        {"schedule-unit-mismatch", "it is made for updates, and stepped once an epoch"}}},
      {"schedule-stepped-again",
       {{"scheduler-stepped-per-rank", "the schedule is stepped W times an update"},
        {"schedule-unit-mismatch", "it is made for updates, and stepped once an epoch"},
        {"schedule-length-ignores-world-size", "the schedule is W times as long as the run"}}},
      {"shares-of-data-overlap",
       {{"shards-overlap", "the ranks' samplers have other seeds"},
        {"epoch-differs-by-rank", "the ranks are told different epochs"},
        {"no-sharding", "the ranks draw the same indices"}}},
      {"training-in-evaluation-mode",
       {{"train-mode-differs-across-ranks", "one rank alone trains in evaluation mode"},
        {"evaluation-in-train-mode", "it is the evaluation that runs in the wrong mode"},
        {"buffers-not-synced", "running statistics differ between ranks"}}},
      {"update-differs",
       {{"local-overflow-skip", "one rank leaves an update out, after a batch that overflowed"},
        {"optimizer-state-missing", "after a resume the optimizer's state is gone on one rank"},
        {"optimizer-built-on-other-parameters", "on one rank no parameter moves"}}},
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

bool is_generic(const std::string& slug) {
  return table().contains(slug);
}

std::vector<std::string> generic_findings() {
  std::vector<std::string> names;
  for (const auto& [name, nearest] : table()) names.push_back(name);
  return names;
}

}  // namespace lockstep::diagnose
