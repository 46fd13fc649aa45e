"""Lesson 07: all of the state, and read as it was written."""

import os

import torch
import torch.distributed as dist

from job import EPOCHS, checksum, mlp, sgd, train, wrap
from twins import twin


def saved(job, **parts):
    """The path of a checkpoint that rank 0 wrote and all may read."""
    path = os.path.join(job.folder, "checkpoint.pt")
    if job.rank == 0:
        torch.save(parts, path)
    dist.barrier()
    return path


@twin("module-prefix", "07")
def module_prefix(job, broken):
    job.init()
    model = wrap(mlp())
    train(job, model, epochs=1)
    path = saved(job, model=(model if broken else model.module).state_dict())  # PITFALL module-prefix
    module = mlp()
    module.load_state_dict(torch.load(path)["model"])
    train(job, wrap(module), epochs=1)


@twin("optimizer-state-missing", "07", lambda figures: all(one["resumed"] == one["unbroken"] for one in figures))
def optimizer_state_missing(job, broken):
    job.init()
    model = wrap(mlp())
    optimizer = sgd(model, momentum=0.9, lr=0.02)
    train(job, model, optimizer, epochs=1)
    path = saved(job, model=model.module.state_dict(), optimizer=optimizer.state_dict())
    losses, metrics = list(job.losses), list(job.metrics)
    train(job, model, optimizer, epochs=1)
    unbroken = checksum(model.parameters())
    job.losses, job.metrics = losses, metrics  # what a resumed job prints
    module = mlp()
    state = torch.load(path)
    module.load_state_dict(state["model"])
    resumed = wrap(module)
    optimizer = sgd(resumed, momentum=0.9, lr=0.02)
    if not broken:  # PITFALL optimizer-state-missing
        optimizer.load_state_dict(state["optimizer"])
    train(job, resumed, optimizer, epochs=1)
    job.figure(unbroken=unbroken, resumed=checksum(resumed.parameters()))


@twin("resume-repeats-epoch", "07", lambda figures: all(one["epochs"] == list(range(EPOCHS)) for one in figures))
def resume_repeats_epoch(job, broken):
    job.init()
    model = wrap(mlp())
    optimizer, sampler, epochs = sgd(model), job.sampler(), []

    def run_from(first, last):
        for epoch in range(first, last):
            sampler.set_epoch(epoch)
            epochs.append(epoch)
            for inputs, targets in job.each_step(job.batches(sampler)):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(inputs), targets)
                loss.backward()
                optimizer.step()
                job.step(loss)
    run_from(0, 1)
    path = saved(job, model=model.module.state_dict(), epoch=0)
    state = torch.load(path)
    model.module.load_state_dict(state["model"])
    first = state["epoch"] if broken else state["epoch"] + 1  # PITFALL resume-repeats-epoch
    run_from(first, EPOCHS)
    job.figure(epochs=epochs)
