"""A job that tells what cannot be seen: its samples' losses, its metric, what it means to do, what it decides, draws,
averages, waits for and keeps. One thing is wrong with it, which FAULT names."""

import io
import os

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

import lockstep_torch

FAULT = os.environ.get("FAULT", "")
BATCH = 8


def evaluate(model, test, rank, world_size):
    by_sampler = FAULT in ("evaluation-padding", "rank-zero-metric")
    sampler = DistributedSampler(test, shuffle=False) if by_sampler else None
    share = test if sampler else Subset(test, range(rank, len(test), world_size))
    hits, count = torch.zeros(()), torch.zeros(())
    model.eval()
    with torch.no_grad():
        for inputs, targets in DataLoader(share, batch_size=4, sampler=sampler):
            hits += (model(inputs).argmax(1) == targets).sum()
            count += len(inputs)
    model.train()
    if FAULT != "rank-zero-metric":
        if FAULT != "local-hits-global-count":
            dist.all_reduce(hits)
        dist.all_reduce(count)
    if FAULT != "rank-zero-metric" or rank == 0:
        lockstep_torch.metric("accuracy", "evaluation", hits.item(), count.item())


def loss_of(losses, world_size):
    if FAULT == "double-average":
        return losses.mean() / world_size
    if FAULT == "sum-not-mean":
        return losses.sum()
    return losses.mean()


def augment(inputs, ids, generator):
    if FAULT == "worker-streams-copied":
        generator.manual_seed(dist.get_rank())  # each batch by a worker that has just begun
    numbers = torch.rand(len(inputs), 2, generator=generator)
    lockstep_torch.random_numbers(ids, numbers)
    return inputs + 0.01 * (numbers[:, :1] - numbers[:, 1:])


def mean_of_all(rows):
    """Each rank has another number of rows."""
    own, count = rows.mean(0), torch.tensor(float(len(rows)))
    if FAULT == "unequal-counts-in-sync":
        used = own.clone()
        dist.all_reduce(used)
        used /= dist.get_world_size()
    else:
        used = rows.sum(0)
        dist.all_reduce(used)
        dist.all_reduce(count)
        used /= count
    lockstep_torch.average("inputs", own, len(rows), used)


def total_of_all(value, rank):
    """Without waiting, rank 0 looks before rank 1 has begun."""
    total, store = torch.full((4,), value), dist.distributed_c10d._get_default_store()
    if FAULT == "async-work-not-waited" and rank == 1:
        store.wait(["rank 0 has looked"])
    work = dist.all_reduce(total, async_op=True)
    if FAULT != "async-work-not-waited" or rank == 1:
        work.wait()
    lockstep_torch.async_result("total", "used", total)
    store.set("rank 0 has looked", "1")
    work.wait()
    lockstep_torch.async_result("total", "waited", total)


def stops(rank, step):
    stop = torch.tensor(float(step == 5 and rank == 1))
    if FAULT != "local-early-stop":
        stop.zero_()
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
    lockstep_torch.decision("stop", stop.item())
    return bool(stop)


def save(model, average, rank):
    lockstep_torch.training_state("saved", {"average": average.state_dict()})
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "average": average.state_dict()}, io.BytesIO())


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    lockstep_torch.intent(global_batch=BATCH * world_size, loss_reduction="mean")
    torch.manual_seed(1)
    train = TensorDataset(torch.randn(64, 12), torch.randint(0, 3, (64,)), torch.arange(64))
    tests = 22 if FAULT == "rank-zero-metric" else 21
    test = TensorDataset(torch.randn(tests, 12), torch.randint(0, 3, (tests,)))
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=BATCH, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Linear(12, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = AveragedModel(model.module)
    draws = torch.Generator().manual_seed(0 if FAULT == "same-augmentation-everywhere" else rank)
    step, stop = 0, False
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets, ids in loader:
            inputs = augment(inputs, ids, draws)
            optimizer.zero_grad()
            losses = cross_entropy(model(inputs), targets, reduction="none")
            lockstep_torch.loss(losses)
            loss_of(losses, world_size).backward()
            optimizer.step()
            if FAULT != "ema-on-one-rank" or rank == 0:
                average.update_parameters(model.module)
            mean_of_all(inputs[rank:])
            step += 1
            stop = stops(rank, step)
            if stop:
                break
        if stop:
            break
        evaluate(model, test, rank, world_size)
        total_of_all(epoch + rank + 1.0, rank)
        save(model, average, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
