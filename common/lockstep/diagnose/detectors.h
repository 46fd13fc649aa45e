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
// parameters. The same where the loss is the sum over a rank's samples.
Verdict sum_not_mean(const trace::Trace& trace);

// Needs as sum_not_mean. Rule: loss scale times reduction scale is 1/W: one of the two divided
// though the other averages already. Not fooled by sum / count (which is the mean once), nor by the
// part losses of gradient accumulation, which are added up before they are compared.
Verdict double_average(const trace::Trace& trace);

// Generic. Needs both gradients. Rule: the reduced gradient is not a multiple of the mean of the
// local ones, plain or weighted by samples, within 1 %. Multiples are left alone (clipping by norm,
// loss scaling), and so are ranks that do not reduce at all (see replicas_diverged), but for one step between
// others that are reduced. Advice while all ranks have the same gradient or stay equal (clipping by value does
// that, and a sharded optimizer); a violation where neither holds. Advice, too, where it is one multiple in all
// steps of what the run declares, and where ranks that never reduce stay equal by broadcasts alone.
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

// ---- updates.cpp ----

// Generic. Needs `update` of every rank, and an engine `distributed_data_parallel` on all. Rule: the first of:
// ranks update with different learning rates; equal parameters and equal reduced gradients give different
// parameters; in a pass ranks made different numbers of updates with equally many
// batches.
Verdict update_differs(const trace::Trace& trace);

// ---- collectives.cpp ----

// Generic. Needs collectives. Rule: at one (group, sequence), the ranks' operation, reduce
// operation, root, dtype or sizes differ. Sizes count only where the operation asks for equal ones
// (reductions and broadcasts, not reduce_scatter); point-to-point operations are left out, and so
// are groups of which a rank has one sequence twice (several under one name).
Verdict collective_mismatch(const trace::Trace& trace);

// ---- devices.cpp: one process that drives W devices ----

// Needs buffers of several devices and forwards in training mode. Rule: a buffer moves on another device's copy, and
// never on the first device. Not fooled by evaluation mode, nor by buffers that are constants, since those move
// nowhere; nor does a momentum of 0 show. Where each rank drives one device it needs `configuration` of "statistics",
// `buffers`, `parameters` and `local_gradients`. Rule: a layer's weight moves in training mode, and its running
// statistics end as they began. Not fooled by a layer in evaluation mode, or one that this rank never runs.
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
// Rule: in a pass, all ranks draw the same ids, more than a share of N/W, each once; or all of them the same
// share. Not fooled by evaluation on all ranks, nor by ranks that draw at random with replacement.
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
// batches as fit into 1/W may be either (drop_last): not_triggered. Advice where each rank can reach all
// samples, and draws exactly 1/W of its share in every pass, the last batch smaller than the others.
Verdict sharded_twice(const trace::Trace& trace);

// Needs samples and the size of the data set, of ranks that train together. Rule: in a pass each rank draws a share
// of the train data, no sample twice, in the same epoch and from an equally indexed set; together they draw W samples
// or more again, though others were not drawn. Advice: that each rank shuffles for itself may be a choice. Not fooled
// by ranks that draw with repeats in any pass, or another number of samples.
Verdict shards_overlap(const trace::Trace& trace);

// Needs data sets, and samples of two train passes in different orders. Rule: fewer samples than W are drawn in none
// of them, which is no chance. Not fooled by a sampler that permutes and then cuts: it misses others each time; nor by
// ids that are no positions.
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

// Rule: inside a pass a new epoch is told, and the pass began with the last pass's first batch; or what was drawn
// before and after the call overlaps. Where the call came between the dealing of a batch and its fetch: the pass
// begins with the last pass's first batches, draws samples of those again, and is as long. Not fooled by the next
// pass's epoch told at the end of this one, by a call between a pass's beginning and its first batch, nor by passes
// that all begin with one batch on purpose.
Verdict epoch_set_after_prefetch(const trace::Trace& trace);

// ---- batch_norm.cpp: all need W > 1 replicas ----

// Advice. Needs buffers and parameters at the start and after updates. Rule: the replicas are equal after an
// update, and buffers that were equal at the start are not. Not fooled by BatchNorm that is frozen, nor by
// statistics that are gathered over the ranks. Other buffers that each rank moves by itself look the same.
Verdict local_batch_norm(const trace::Trace& trace);

// Needs buffers at the start, and those that every rank's evaluation went by. Rule: they differ though they
// were equal at the start. Not fooled by buffers that differ while training and are made equal in time, nor
// by an evaluation on one rank.
Verdict buffers_not_synced(const trace::Trace& trace);

// Needs every rank's forwards and updates. Rule: the last forward before an update ran in training mode on
// some ranks and in evaluation mode on others. Not fooled by one rank that evaluates between updates, nor
// by evaluation mode on all ranks.
Verdict train_mode_differs_across_ranks(const trace::Trace& trace);

// ---- batch_sync.cpp ----

// Needs means that every rank took part in, over unequal counts. Rule: all ranks went on with the plain mean
// of their means, which is not the mean weighted by their counts. Not fooled by equal counts, nor by ranks
// that go on with their own.
Verdict unequal_counts_in_sync(const trace::Trace& trace);

// Needs buffers, forwards and collectives. Rule: on a rank, a broadcast came after a forward in training mode
// and before its backward, and that step's backward never ended. Not fooled by two forwards without a
// broadcast between them, nor by broadcasts that did no harm before.
Verdict buffer_sync_inside_backward(const trace::Trace& trace);

// Needs an engine, shapes, both gradients, and collectives. Rule: the ranks go by their own gradients for
// parameters of C values, where 2C + 1 numbers are all-gathered (SyncBatchNorm's statistics), and by the
// mean for others. Not fooled by a late conversion that keeps the tensors.
Verdict sync_bn_after_wrapping(const trace::Trace& trace);

// ---- learning_rate.cpp: all need a declared reference rate and its world size, updates, and losses and
// both gradients of a first step; an update must take more samples than the reference run's ----

// Advice. Needs parameters before and after the first update too, which goes along the gradient. Rule: the
// highest rate is the reference's. Not fooled by a warm-up, by a gradient that is W times as long (a summed
// loss), nor by an optimizer that normalises its gradient.
Verdict lr_not_scaled(const trace::Trace& trace);

// Advice. Needs the same, and an update that is no multiple of the gradient, tensor by tensor. Rule: the
// rate has grown as much as the batch. Not fooled by a factor of W that is the root of a larger growth
// (accumulation), nor by weight decay.
Verdict linear_rule_with_adam(const trace::Trace& trace);

// Needs losses of the first ten steps in a row; with fewer (the default records four) it finds, and never says
// clean of a whole rate. Rule: the first update has the whole scaled rate, and the mean loss of all ranks
// rises: by a fifth where a step has the first one's samples, else to more than four times, or for good
// and by far more than the ten losses vary. Not fooled by a scaled rate from the first update on that
// does no harm, nor by losses of other samples that differ by chance.
Verdict no_warmup(const trace::Trace& trace);

// ---- schedule.cpp: all need updates, and a schedule with the steps it was made for ----

// Rule: W steps for every update, and it is beyond its end before the run is. Not fooled by W steps for every
// update of a schedule that is W times as long.
Verdict scheduler_stepped_per_rank(const trace::Trace& trace);

// Rule: one step a pass, though it has as many as the run has updates, or about as many, over a thousand and
// over a hundred a pass; or one step an update, beyond its end, where the rate goes on changing. Needs
// passes, and a run that ended in order, for the former. Not fooled by a schedule made for passes, nor by
// a warm-up that ends and leaves the rate alone. A run that stopped of itself after as many updates as its
// plan has passes looks the same; after about as many, not_triggered.
Verdict schedule_unit_mismatch(const trace::Trace& trace);

// Needs a run that ended in order. Rule: at its pace the schedule would take W times as many updates as the
// run. Not fooled by one that counts all ranks' samples, whose pace is their number, nor by a run that was
// killed; one that stopped of itself after exactly 1/W of its plan looks the same.
Verdict schedule_length_ignores_world_size(const trace::Trace& trace);

// ---- uneven.cpp: both need W > 1 ranks ----

// Needs train passes and collectives. Rule: some ranks have drawn more batches than others whose last pass
// has ended, and wait in a collective that those never entered. Named are the odd ones out of the first pass
// in which their numbers of batches differ, and the step of its first batch that is too many: where they stand
// may be passes later. Not fooled by Join, where the ranks that are done take part; by unequal batches that end
// in order; nor by a rank that failed in between.
Verdict uneven_batches(const trace::Trace& trace);

// Needs a declared mean loss, losses, and both gradients of a step in which the ranks have unequally many
// samples. Rule: each rank starts from the mean loss of its own samples, and the reduced gradient is the
// plain mean. Not fooled by losses that are weighted, or gradients that are divided later, by all samples.
Verdict mean_of_local_means(const trace::Trace& trace);

// ---- accumulation.cpp: all but the first two need a declared mean loss, and losses; all want updates
// after several backwards whose samples are the parts of one batch ----

// Advice. Needs W > 1 ranks, losses, the parameters' shapes, all-reduces. Rule: a backward that is not the
// last before an update had all parameters' elements reduced. Not fooled by many all-reduces of few
// elements each (buckets, logged losses).
Verdict sync_every_microbatch(const trace::Trace& trace);

// Needs the same, and sync_gradients. Rule: the same, while the engine had been told not to reduce.
Verdict no_sync_around_backward_only(const trace::Trace& trace);

// Needs both gradients. Rule: every backward starts from its samples' mean loss, undivided, and the
// reduced gradient is the mean of the ranks' sums. Not fooled by gradients that are divided later, nor by
// several losses of the same samples.
Verdict accumulation_not_divided(const trace::Trace& trace);

// Rule: the first update comes after fewer backwards than later ones, though their losses are divided for
// as many. Not fooled by a short last group, nor by batches that are meant to grow.
Verdict accumulation_off_by_one(const trace::Trace& trace);

// Rule: backwards of unequal numbers of samples start from equal shares of their mean loss. Not fooled by
// means that are weighted by those numbers.
Verdict mean_of_microbatch_means(const trace::Trace& trace);

// ---- last_window.cpp ----

// Needs samples, updates, a finished train pass; of the batches that it leaves behind its last update, a loss
// or a training forward. Rule: on every rank, all updates of the pass take equally many batches, two or more;
// fewer are left, and either the gradients are cleared before the next update, or there is none and the pass
// went through the data to its end. A violation: whoever means to leave a tail out spares its backward. Not
// fooled by a last update of fewer batches, batches that are drawn and not trained on, what is carried over
// into the next pass, steps left out for infinities, or ranks that others go on without (Join). Where several
// passes leave batches and no zero_grad was recorded, not_triggered.
Verdict last_accumulation_window_lost(const trace::Trace& trace);

// ---- clipping.cpp: all need clips ----

// Needs W > 1 ranks. Rule: all ranks clip the same gradients, and each goes by sqrt(W) times their norm.
// Not fooled by squares that are summed over the ranks where each has those of its own part.
Verdict norm_reduced_twice(const trace::Trace& trace);

// Needs W > 1 ranks and reduced gradients. Rule: the ranks clip gradients of their own, each by another
// factor, and the reduced gradient is the mean of what is left. Not fooled by a clip of own gradients that
// are all shorter than allowed.
Verdict clip_before_reduction(const trace::Trace& trace);

// Needs reduced gradients, and a loss scaled by 256 or more. Rule: in every step gradients are clipped, then
// divided by the scale, and the norm allowed lies nearer to the one they have without the scale. Not
// fooled by a norm that is scaled with the loss.
Verdict clip_before_unscale(const trace::Trace& trace);

// ---- precision.cpp: both need W > 1 ranks ----

// Needs every rank's scaled steps. Rule: of the ranks' n-th steps some update and some do not. Not fooled by
// ranks that find different things and decide alike, nor by a step that all leave out.
Verdict local_overflow_skip(const trace::Trace& trace);

// Needs both gradients, and collectives. Rule: every rank's own gradient is finite, the reduced one is not,
// and it was reduced in 16 bits. Not fooled by 16 bits that suffice, nor by a rank that overflows by itself.
// Steps in 16 bits whose gradients were not recorded make it not_triggered, unless a scaled step found
// nothing in them.
Verdict low_precision_reduction(const trace::Trace& trace);

// ---- engine.cpp: whose gradients ----

// Needs a distributed gradient engine, and each gradient's arrival. Rule: a rank's backward ended without
// a gradient of some parameter, fewer elements than the engine holds were all-reduced, and the rank
// made no further update. Not fooled by engines that look for unused parameters: they reduce all; nor by
// one that is bypassed: it reduces nothing in any step, and is not waited for. Arrivals are recorded in few
// steps: where a rank stopped in another one, not_triggered. That needs samples, or a training forward; of
// a trace that has neither and ended in order, nothing tells.
Verdict unused_parameter(const trace::Trace& trace);

// Needs an engine, and the model recorded again where requires_grad has changed. Rule: the engine took
// over another number of parameters than are trained, and a backward's all-reduces do not cover
// both. Not fooled by engines that look for unused parameters, nor by a model that is wrapped again.
Verdict frozen_after_wrapping(const trace::Trace& trace);

// Needs parameters before and after updates, gradients, learning rates. Rule: gradient and rate are not
// zero, and no parameter of the rank moves in any update. Not fooled by a warm-up that begins at a rate
// of zero.
Verdict optimizer_built_on_other_parameters(const trace::Trace& trace);

// Needs an engine, losses, and each gradient's arrival. Rule: in the update that a rank did not live to
// make, a parameter's gradient came again before a backward had brought or reduced all of them, and
// no sync_gradients had told the engine to wait. Not fooled by accumulation, nor by a layer that is
// used twice in one forward. not_triggered as unused_parameter.
Verdict parameter_ready_twice(const trace::Trace& trace);

// Needs zero_grad. Rule: the optimizer was to clear gradients that are views, which LibTorch refuses, and
// the rank made no update after it. Not fooled by modules that let go of them, nor by zeroing in place.
Verdict zero_grad_on_bucket_view(const trace::Trace& trace);

// ---- randomness.cpp: both need the random numbers drawn for samples ----

// Needs those of every rank. Rule: in batches in a row, ranks draw the same numbers for other samples, 16
// of them or more. Not fooled by equal seeds of streams that nothing is drawn from, by a sample that
// two ranks draw alike, nor by one draw that all ranks make for a whole batch.
Verdict same_augmentation_everywhere(const trace::Trace& trace);

// Rule: a rank's batches of each pass come in rounds of equally many, two or more, in which each batch has the
// numbers of the round's first; a pass may end inside a round. Not fooled by one draw for a whole batch, by a sample that is drawn again, nor by
// an epoch that repeats the last one's numbers.
Verdict worker_streams_copied(const trace::Trace& trace);

// ---- metrics.cpp: both need samples of a finished pass, and metrics of it ----

// Advice. Rule: one rank alone reports a metric of just the samples that it drew itself, and others drew
// more. Not fooled by ranks that each report their own, nor by a rank that draws all the samples.
Verdict rank_zero_metric(const trace::Trace& trace);

// Needs a metric on every rank. Rule: each counts all ranks' samples, more than the rank drew, and the
// ranks' sums differ. Not fooled by a count that is known and not reduced, nor by ranks that each draw all.
Verdict local_hits_global_count(const trace::Trace& trace);

// ---- loss_graph.cpp: both need one loss of every rank in a step, a collective and an update after it ----

// Needs samples. Rule: every rank's loss is of all ranks' samples, the same and unscaled; an all-gather comes
// before it, and no collective after it could bring the gathered values' gradients back. Not fooled by a
// loss times W, which makes up for it, nor by a loss of a rank's own samples against gathered ones (where a
// gather without gradients, for a metric say, cannot be told from a loss's).
Verdict gather_loses_graph(const trace::Trace& trace);

// Rule: a scalar is summed over the ranks, and the loss that backward starts from is the mean of the ranks'
// losses, which differ; no scalar is summed in backward. Not fooled by a differentiable all-reduce, nor
// by one that comes after backward.
Verdict loss_all_reduced_in_place(const trace::Trace& trace);

}  // namespace lockstep::diagnose
