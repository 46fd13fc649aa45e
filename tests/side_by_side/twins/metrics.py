"""Lesson 16: reduce sums and counts, and only a copy of the loss."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable

from job import TEST_SAMPLES, WORLD, gradient, local_gradient, mlp, sgd, train, wrap
from twins import close, mean_of_local, twin


def global_accuracy(figures):
    right = sum(one["hits"] for one in figures) / TEST_SAMPLES
    return all(close(one["said"], right) for one in figures if "said" in one)


def evaluate(job, model):
    """(hits, samples) of this rank's share."""
    ids = range(job.rank, TEST_SAMPLES, WORLD)
    with torch.no_grad():
        hits = (model(job.test_inputs[ids]).argmax(1) == job.test_targets[ids]).sum()
    job.figure(hits=float(hits))
    return hits, torch.tensor(len(ids))


@twin("rank-zero-metric", "16", global_accuracy, ranks=({0},))
def rank_zero_metric(job, broken):
    job.init()
    module = mlp()
    train(job, wrap(module))
    hits, count = evaluate(job, module)
    if not broken:  # PITFALL rank-zero-metric
        dist.all_reduce(hits)
        dist.all_reduce(count)
    if job.rank == 0:
        job.report(hits / count)
        job.figure(said=float(hits / count))


@twin("local-hits-global-count", "16", global_accuracy)
def local_hits_global_count(job, broken):
    job.init()
    module = mlp()
    train(job, wrap(module))
    hits, count = evaluate(job, module)
    dist.all_reduce(count)
    if not broken:  # PITFALL local-hits-global-count
        dist.all_reduce(hits)
    job.report(hits / count)
    job.figure(said=float(hits / count))


@twin("gather-loses-graph", "16", mean_of_local)
def gather_loses_graph(job, broken):
    job.init()
    module = mlp()
    model = wrap(module)
    optimizer = sgd(model)
    for inputs, targets in job.each_step(job.batches(job.sampler())):
        optimizer.zero_grad()
        if job.steps == 0:
            job.figure(local=local_gradient(module, inputs, targets))
        features = model(inputs)
        all_targets = [torch.empty_like(targets) for _ in range(WORLD)]
        dist.all_gather(all_targets, targets)
        if broken:  # PITFALL gather-loses-graph
            everyones = [torch.empty_like(features) for _ in range(WORLD)]
            dist.all_gather(everyones, features.detach())
            everyones[job.rank] = features
        else:
            everyones = differentiable.all_gather(features)
        loss = torch.nn.functional.cross_entropy(torch.cat(list(everyones)), torch.cat(all_targets))
        loss.backward()
        if job.steps == 0:
            job.figure(used=gradient(module))
        optimizer.step()
        job.step(loss)


@twin("loss-all-reduced-in-place", "16", mean_of_local)
def loss_all_reduced_in_place(job, broken):
    job.init()
    module = mlp()
    model = wrap(module)
    optimizer = sgd(model)
    for inputs, targets in job.each_step(job.batches(job.sampler())):
        optimizer.zero_grad()
        if job.steps == 0:
            job.figure(local=local_gradient(module, inputs, targets))
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        shown = loss if broken else loss.detach().clone()  # PITFALL loss-all-reduced-in-place
        dist.all_reduce(shown)
        shown /= WORLD
        loss.backward()
        if job.steps == 0:
            job.figure(used=gradient(module))
        optimizer.step()
        job.step(shown)
