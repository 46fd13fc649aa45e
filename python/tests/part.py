"""A job that records a part of itself: usage: part.py HOW FOLDER [FAULT]

HOW: plain (nothing), before or after (the group is made), whole, uneven (the ranks leave at other steps), raises, again
"""

import contextlib
import pathlib
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import lockstep_torch
from lockstep_torch import processes

HOW, FOLDER, *FAULT = sys.argv[1:]


def train(loader, model, optimizer, epochs, steps=100):
    for epoch in epochs:
        if not FAULT:
            loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            if steps == 0:
                return
            steps -= 1
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()


def head(rank):
    """Whether the trace was closed, how many collectives were entered, and its length."""
    file = pathlib.Path(FOLDER, f"rank_{rank}.trace")
    its = processes.head(file)
    return [its.closed, its.entered, its.length]


def watched():
    return contextlib.nullcontext() if HOW == "plain" else lockstep_torch.watch(FOLDER)


def set_up():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    return loader, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def main():
    begins_late = HOW in ("after", "uneven")
    if begins_late:
        dist.init_process_group("gloo")
    with watched():
        if not begins_late:
            dist.init_process_group("gloo")
        parts, rank = set_up(), dist.get_rank()
        train(*parts, range(2), steps=10 if HOW in ("uneven", "raises") and rank == 1 else 100)
        if HOW == "raises" and rank == 1:
            raise ValueError("a part of the job")
        if HOW == "whole":
            train(*parts, range(2, 4))
            dist.destroy_process_group()
    if HOW not in ("plain", "whole"):
        left = head(rank)
    if HOW == "again":
        with lockstep_torch.watch(FOLDER + " again"):
            pass
    if HOW == "uneven" and rank == 1:
        train(*parts, [1], steps=6)
    if HOW != "whole":
        train(*parts, range(2, 4))
        dist.barrier()
        dist.destroy_process_group()
    if HOW not in ("plain", "whole"):
        sys.stdout.write(f"left {left} now {head(rank)}\n")
    total = sum(parameter.detach().double().sum() for parameter in parts[1].parameters())
    sys.stdout.write(f"rank {rank}: {total.item().hex()}\n")


if __name__ == "__main__":
    main()
