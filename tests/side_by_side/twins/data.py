"""Lessons 04, 05 and 15: which rank sees which samples, in which order, with which dice."""

import torch
import torch.distributed as dist

from job import BATCH, EPOCHS, SAMPLES, TEST_SAMPLES, WORLD, mlp, sgd, train, wrap
from twins import twin


def each_once(figures):
    """The ranks together saw every sample of the first epoch once."""
    return sorted(id for one in figures for id in one["ids"]) == list(range(SAMPLES))


@twin("no-sharding", "04", each_once)
def no_sharding(job, broken):
    job.init()
    model = wrap(mlp())
    if broken:  # PITFALL no-sharding
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(job.seed)).tolist()
    else:
        order = list(job.sampler())
    optimizer = sgd(model)
    for inputs, targets in job.each_step(job.batches(order)):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        job.step(loss)
    job.figure(ids=order)


@twin("sharded-twice", "04", each_once)
def sharded_twice(job, broken):
    job.init()
    model = wrap(mlp())
    files = list(range(job.rank, SAMPLES, WORLD))  # this rank's half of the files
    if broken:  # PITFALL sharded-twice
        order = [files[i] for i in torch.utils.data.DistributedSampler(files, WORLD, job.rank, seed=job.seed)]
    else:
        order = files
    optimizer = sgd(model)
    for inputs, targets in job.each_step(job.batches(order)):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        job.step(loss)
    job.figure(ids=order)


@twin("evaluation-padding", "04", lambda figures: sum(one["seen"] for one in figures) == TEST_SAMPLES)
def evaluation_padding(job, broken):
    job.init()
    model = wrap(mlp())
    train(job, model)
    if broken:  # PITFALL evaluation-padding
        ids = list(torch.utils.data.DistributedSampler(range(TEST_SAMPLES), WORLD, job.rank, shuffle=False))
    else:
        ids = list(range(job.rank, TEST_SAMPLES, WORLD))
    model.eval()
    with torch.no_grad():
        hits = (model.module(job.test_inputs[ids]).argmax(1) == job.test_targets[ids]).sum()
    both = torch.tensor([float(hits), float(len(ids))])
    dist.all_reduce(both)
    job.report(both[0] / both[1])
    job.figure(seen=len(ids))


@twin("shuffled-evaluation", "04", lambda figures: all(one["orders"] == 1 for one in figures))
def shuffled_evaluation(job, broken):
    job.init()
    model = wrap(mlp())
    sampler = torch.utils.data.DistributedSampler(range(TEST_SAMPLES - 1), WORLD, job.rank,
                                                  shuffle=broken)  # PITFALL shuffled-evaluation
    orders = set()
    for epoch in range(EPOCHS):
        train(job, model, epochs=1)
        sampler.set_epoch(epoch)
        ids = list(sampler)
        orders.add(tuple(ids))
        with torch.no_grad():
            hits = (model.module(job.test_inputs[ids]).argmax(1) == job.test_targets[ids]).float().mean()
        dist.all_reduce(hits)
        job.report(hits / WORLD)
    job.figure(orders=len(orders))


@twin("missing-set-epoch", "05", lambda figures: all(one["orders"] == EPOCHS for one in figures))
def missing_set_epoch(job, broken):
    job.init()
    model = wrap(mlp())
    optimizer, sampler, orders = sgd(model), job.sampler(), set()
    for epoch in range(EPOCHS):
        if not broken:  # PITFALL missing-set-epoch
            sampler.set_epoch(epoch)
        orders.add(tuple(sampler))
        for inputs, targets in job.each_step(job.batches(sampler)):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            job.step(loss)
    job.figure(orders=len(orders))


@twin("epoch-differs-by-rank", "05", each_once)
def epoch_differs_by_rank(job, broken):
    job.init()
    model = wrap(mlp())
    optimizer, sampler = sgd(model), job.sampler()
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch + job.rank if broken else epoch)  # PITFALL epoch-differs-by-rank
        ids = list(sampler)
        for inputs, targets in job.each_step(job.batches(ids)):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            job.step(loss)
    job.figure(ids=ids)


@twin("same-augmentation-everywhere", "15", lambda figures: figures[0]["draws"] != figures[1]["draws"])
def same_augmentation_everywhere(job, broken):
    job.init()
    model = wrap(mlp())
    if not broken:  # PITFALL same-augmentation-everywhere
        torch.manual_seed(1000 * job.seed + job.rank)
    job.figure(draws=torch.rand(BATCH, generator=torch.Generator().set_state(torch.get_rng_state())).tolist())
    noisy = lambda inputs: model(inputs + 0.1 * torch.randn(inputs.shape))  # noqa: E731
    train(job, model, forward=noisy)
