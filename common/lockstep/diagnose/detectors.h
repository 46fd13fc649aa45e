// The detectors, one function for each pitfall. Each comment says what must have been recorded
// ("needs"), the rule, and what would fool a naive check. What a detector lacks makes it
// not_triggered, with the reason; a world size or a size of data at which the pitfall cannot show,
// not_applicable.
//
// W = ranks (or devices), N = samples of the whole data set. Gradients are compared through their
// projections, relative to their norms; steps without recorded values are passed over.
#pragma once

#include <lockstep/diagnose/diagnose.h>

namespace lockstep::diagnose {

// ---- gradient.cpp ----

// Needs local and reduced gradients of two consecutive steps. Rule: the gradient before an update
// is the one before the last update plus the mean of the local ones, and not that mean. Not fooled
// by gradient accumulation, whose local gradient is the sum of several backwards.
Verdict gradients_not_zeroed(const trace::Trace& trace);

// Needs W > 1 ranks, both gradients, losses, and a declared mean loss. Rule: the reduced gradient
// is W times the mean of the local ones, and the loss is not divided. Not fooled by a loss that is
// divided by W before a sum (scales W and 1/W), nor by Adam, which hides the scale in the
// parameters.
Verdict sum_not_mean(const trace::Trace& trace);

// Needs as sum_not_mean. Rule: loss scale times reduction scale is 1/W: one of the two divided
// though the other averages already. Not fooled by sum / count (which is the mean once), nor by the
// part losses of gradient accumulation, which are added up before they are compared.
Verdict double_average(const trace::Trace& trace);

// Generic. Needs both gradients. Rule: the reduced gradient is not a multiple of the mean of the
// local ones, plain or weighted by samples, within 1 %. Multiples are left alone (clipping by norm,
// loss scaling), and so are ranks that do not reduce at all (see replicas_diverged). Advice while
// all ranks have the same gradient or stay equal (clipping by value does that, and a sharded
// optimizer); a violation where neither holds.
Verdict gradient_not_the_mean(const trace::Trace& trace);

// ---- replicas.cpp ----

// Needs every rank's list of parameters. Rule: shapes or dtypes differ. Names may differ.
Verdict parameters_differ_across_ranks(const trace::Trace& trace);

// Needs every rank's parameters right before the first step. Rule: they differ beyond rounding. Not
// fooled by equal seeds in place of a broadcast.
Verdict no_initial_broadcast(const trace::Trace& trace);

// Needs parameters before and after updates, both gradients, no gradient engine. Rule: replicas
// start equal, each rank goes by its own gradient, and they are apart ever after. Not fooled by
// averaging the parameters after local steps: where equal ones were not recorded, collectives as
// large as the parameters after an update make it not_triggered.
Verdict no_gradient_sync(const trace::Trace& trace);

// The same where a distributed gradient engine took the parameters over: its forward was not
// called.
Verdict forward_bypasses_wrapper(const trace::Trace& trace);

// Generic. Needs parameters after updates. Rule: they differ across ranks at some step and are not
// equal again later. not_triggered where gradients are not reduced and the replicas may be averaged
// unseen, as in no_gradient_sync.
Verdict replicas_diverged(const trace::Trace& trace);

// ---- collectives.cpp ----

// Generic. Needs collectives. Rule: at one (group, sequence), the ranks' operation, reduce
// operation, root, dtype or sizes differ. Sizes count only where the operation asks for equal ones
// (reductions and broadcasts, not reduce_scatter); point-to-point operations are left out, and so
// are groups of which a rank has one sequence twice (several under one name).
Verdict collective_mismatch(const trace::Trace& trace);

// ---- devices.cpp: one process that drives W devices ----

// Needs buffers of several devices and forwards in training mode. Rule: a buffer moves on another
// device's copy, and never on the first device. Not fooled by evaluation mode, nor by buffers that
// are constants, since those move nowhere; nor does a momentum of 0 show.
Verdict replica_buffers_lost(const trace::Trace& trace);

// Needs splits. Rule: a batch gave fewer parts than devices, and neither a forward nor an update
// followed. Not fooled by fewer parts where the run went on with as many devices, nor by the batches
// of an evaluation, as far as passes or forwards tell them.
Verdict odd_batch_split(const trace::Trace& trace);

// Needs splits and both gradients. Rule: with unequal parts, the reduced gradient is the plain mean
// of the parts' and not the mean weighted by their samples. Equal parts cannot show it.
Verdict unequal_chunk_mean(const trace::Trace& trace);

// Advice. Needs transfers. Rule: device 0 moves over 1.5 times the bytes of the median other
// device; with two devices, where a gather looks symmetric, it receives over 1.5 times the other's
// gradient bytes.
Verdict device_zero_bottleneck(const trace::Trace& trace);

// ---- data.cpp ----

// Needs data sets. Rule: ranks reach the same ids and find other samples there. Not fooled by ranks
// that hold different parts of one data set, whose ids differ too.
Verdict dataset_unseeded(const trace::Trace& trace);

// Needs data sets and samples. Rule: ranks reach the same samples in another order, and a pass has
// overlaps and gaps. Not fooled by ranks that split by id, for whom order does not matter.
Verdict file_order_differs(const trace::Trace& trace);

// Needs samples of ranks that train together (a collective after training began, or an engine).
// Rule: in a pass, all ranks draw the same ids, more than a share of N/W, each once. Not fooled by
// evaluation on all ranks, nor by ranks that draw at random with replacement.
Verdict no_sharding(const trace::Trace& trace);

// Needs samples. Rule: within a pass each rank draws each of its ids equally often, more than once;
// and all ranks draw the same ids and train together, or the repeats come as whole batches next to
// each other (workers of one loader). Not fooled by drawing with replacement, where ids repeat
// unequally, nor by a batch or a few trained again and again: of each rank's batches more must
// differ than an id has repeats. Every batch repeated on purpose looks the same and is named.
Verdict stream_not_sharded(const trace::Trace& trace);

// Needs data sets and samples. Rule: each rank holds only a part of the data set and draws exactly
// 1/W of that part in every pass, rounded up or down, no id on two ranks. Not fooled by ranks that
// draw all of their own part, nor by passes that stop early, unless at exactly 1/W. As many whole
// batches as fit into 1/W may be either (drop_last): not_triggered.
Verdict sharded_twice(const trace::Trace& trace);

// Needs data sets, and samples of two train passes in different orders. Rule: every pass draws the
// same ids, fewer than the data set has by less than W. Not fooled by a sampler that permutes and
// then cuts: it misses others each time; nor by ids that are no positions.
Verdict tail_never_seen(const trace::Trace& trace);

// Needs data sets whose ids are positions (their hash says so), and samples; W > 2N. Rule: an id
// beyond the data set was drawn, whatever came after.
Verdict padding_overruns(const trace::Trace& trace);

// Needs data sets and a finished train pass. Rule: a rank drew nothing in it. Not fooled by a shard
// smaller than a batch that is drawn as a smaller batch.
Verdict empty_shard(const trace::Trace& trace);

// ---- evaluation.cpp ----

// Needs samples and a metric of an evaluation pass; N % W != 0. Rule: the metric counts 1 to W - 1
// samples more than there are different ids. Not fooled by repeats that are drawn and not counted.
Verdict evaluation_padding(const trace::Trace& trace);

// Needs samples of two evaluation passes over equally many. Rule: their sets of ids differ, no other
// pass drew one of the two again, and they overlap; or they do not, and two random choices from the
// one evaluation data set that was recorded may well do so. Not fooled by another order, by a few
// batches at first and all at the end, by another data set, nor by one fold after another.
Verdict shuffled_evaluation(const trace::Trace& trace);

// ---- epoch.cpp: all need samples of at least two finished train passes ----

// Rule: a shuffled order that is the same in every pass, and no second epoch was ever told. Not
// fooled by an order that is ascending by choice, by samplers that reshuffle themselves, nor by an
// epoch told twice.
Verdict missing_set_epoch(const trace::Trace& trace);

// Rule: the same, though different epochs had been told when the passes began.
Verdict set_epoch_on_copy(const trace::Trace& trace);

// Rule: when a pass began the ranks had been told different epochs, and it has overlaps and gaps.
// Not fooled by epochs that nothing depends on.
Verdict epoch_differs_by_rank(const trace::Trace& trace);

// Rule: inside a pass a new epoch is told, and the pass began with the last pass's first batch; or
// what was drawn before and after the call overlaps. Not fooled by the next pass's epoch told at
// the end of this one, nor by a call between a pass's beginning and its first batch.
Verdict epoch_set_after_prefetch(const trace::Trace& trace);

}  // namespace lockstep::diagnose
