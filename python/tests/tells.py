"""A job that tells what cannot be seen: its samples' losses, its metric, and what it means to do. One thing is wrong
with it, which FAULT names."""

import os

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
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


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    lockstep_torch.intent(global_batch=BATCH * world_size, loss_reduction="mean")
    torch.manual_seed(1)
    train = TensorDataset(torch.randn(64, 12), torch.randint(0, 3, (64,)))
    tests = 22 if FAULT == "rank-zero-metric" else 21
    test = TensorDataset(torch.randn(tests, 12), torch.randint(0, 3, (tests,)))
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=BATCH, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Linear(12, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            losses = cross_entropy(model(inputs), targets, reduction="none")
            lockstep_torch.loss(losses)
            loss_of(losses, world_size).backward()
            optimizer.step()
        evaluate(model, test, rank, world_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
