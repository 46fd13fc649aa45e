"""Lessons 01, 08, 11, 12 and 13: what the update is made of, and how far it goes."""

import torch
import torch.distributed as dist

from job import (BATCH, RATE, SAMPLES, WORLD, broadcast_parameters, gradient, local_gradient, mean_by_hand, mlp, sgd,
                 train, wrap)
from twins import close, mean_of_local, twin

PARTS = 4  # microbatches of an update


@twin("gradients-not-zeroed", "01", mean_of_local)
def gradients_not_zeroed(job, broken):
    job.init()
    module = mlp()
    model = wrap(module)
    optimizer = sgd(model)
    for inputs, targets in job.each_step(job.batches(job.sampler())):
        if not broken:  # PITFALL gradients-not-zeroed
            optimizer.zero_grad()
        if job.steps == 1:
            job.figure(local=local_gradient(module, inputs, targets))
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        if job.steps == 1:
            job.figure(used=gradient(module))
        optimizer.step()
        job.step(loss)


@twin("lr-not-scaled", "08", lambda figures: all(close(one["rate"], RATE * WORLD) for one in figures))
def lr_not_scaled(job, broken):
    """RATE is right for one process with batches of BATCH; here they are WORLD times as large."""
    job.init()
    model = wrap(mlp())
    optimizer = sgd(model, lr=RATE if broken else RATE * WORLD)  # PITFALL lr-not-scaled
    train(job, model, optimizer)
    job.figure(rate=optimizer.param_groups[0]["lr"])


@twin("scheduler-stepped-per-rank", "08", lambda figures: all(one["steps"] == one["updates"] for one in figures))
def scheduler_stepped_per_rank(job, broken):
    job.init()
    model = wrap(mlp())
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / (SAMPLES / WORLD / BATCH)))
    for inputs, targets in job.each_step(job.batches(job.sampler())):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        for _ in range(WORLD if broken else 1):  # PITFALL scheduler-stepped-per-rank
            schedule.step()
        job.step(loss)
    job.figure(steps=schedule.last_epoch, updates=job.steps)


def mean_of_samples(figures):
    samples = sum(one["samples"] for one in figures)
    mean = sum(one["local"] for one in figures) / samples
    return all(close(one["used"], mean) for one in figures)


@twin("mean-of-local-means", "11", mean_of_samples)
def mean_of_local_means(job, broken):
    job.init()
    module = mlp()
    model = wrap(module)
    optimizer, size = sgd(model), BATCH if job.rank == 0 else BATCH // 4  # the ranks' batches are not of one size
    ids = list(job.sampler())[:size * 24]
    for inputs, targets in job.each_step(job.batches(ids, size)):
        optimizer.zero_grad()
        if job.steps == 0:
            job.figure(local=local_gradient(module, inputs, targets, "sum"), samples=len(inputs))
        loss = torch.nn.functional.cross_entropy(model(inputs), targets, reduction="sum")
        if broken:  # PITFALL mean-of-local-means
            mean = loss / len(inputs)
        else:
            count = torch.tensor(float(len(inputs)))
            dist.all_reduce(count)
            mean = loss * WORLD / count
        mean.backward()
        if job.steps == 0:
            job.figure(used=gradient(module))
        optimizer.step()
        job.step(loss.detach() / len(inputs))


def accumulate(job, model, module, divisor, is_last, without_sync):
    """One epoch, an update for PARTS microbatches; gives back how many backwards were reduced, and updates done."""
    optimizer, reduced, updates = sgd(model), 0, 0
    for i, (inputs, targets) in enumerate(job.each_step(job.batches(job.sampler()))):
        model.require_backward_grad_sync = is_last(i) or not without_sync
        reduced += model.require_backward_grad_sync
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        (loss / divisor).backward()
        if is_last(i):
            if not updates:
                job.figure(used=gradient(module), at=i)
            optimizer.step()
            optimizer.zero_grad()
            updates += 1
        job.step(loss)
    job.figure(reduced=reduced, updates=updates)


def first_update_local(job, module):
    parts = [local_gradient(module, *batch) for batch in list(job.batches(job.sampler()))[:PARTS]]
    job.figure(local=sum(parts) / PARTS)


def last_of_each(i):
    return (i + 1) % PARTS == 0


@twin("accumulation-not-divided", "12", mean_of_local)
def accumulation_not_divided(job, broken):
    job.init()
    module = mlp()
    model = wrap(module)
    first_update_local(job, module)
    divisor = 1 if broken else PARTS  # PITFALL accumulation-not-divided
    accumulate(job, model, module, divisor, last_of_each, without_sync=True)


@twin("accumulation-off-by-one", "12", lambda figures: all(one["at"] == PARTS - 1 for one in figures))
def accumulation_off_by_one(job, broken):
    job.init()
    module = mlp()
    model = wrap(module)
    is_last = (lambda i: i % PARTS == 0) if broken else last_of_each  # PITFALL accumulation-off-by-one
    accumulate(job, model, module, PARTS, is_last, without_sync=True)


@twin("sync-every-microbatch", "12", lambda figures: all(one["reduced"] == one["updates"] for one in figures))
def sync_every_microbatch(job, broken):
    job.init()
    module = mlp()
    model = wrap(module)
    without_sync = not broken  # PITFALL sync-every-microbatch
    accumulate(job, model, module, PARTS, last_of_each, without_sync)


LIMIT, SCALE = 0.5, 1024.0


@twin("clip-before-unscale", "13", lambda figures: all(close(one["clipped_to"], LIMIT) for one in figures))
def clip_before_unscale(job, broken):
    job.init()
    model = wrap(mlp())
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=SCALE)
    for inputs, targets in job.each_step(job.batches(job.sampler())):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        if not broken:  # PITFALL clip-before-unscale
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        scaler.step(optimizer)
        if job.steps == 0:  # an update of SGD is the rate times the gradient
            moved = sum(float(((a - b) ** 2).sum()) for a, b in zip(before, model.parameters())) ** 0.5
            job.figure(clipped_to=moved / RATE)
        scaler.update()
        job.step(loss)


@twin("clip-before-reduction", "13", lambda figures: all(close(one["norm"], LIMIT) for one in figures))
def clip_before_reduction(job, broken):
    job.init()
    model = mlp()
    broadcast_parameters(model)

    def reduce(model):
        if broken:  # PITFALL clip-before-reduction
            torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
            mean_by_hand(model)
        else:
            mean_by_hand(model)
            torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        if job.steps == 0:
            job.figure(norm=float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])))
    train(job, model, after_backward=reduce)
