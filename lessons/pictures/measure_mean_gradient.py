"""One step of two ranks under DDP, followed at one weight: what each rank's backward gives, and what both hold then.

usage: torchrun --nproc-per-node 2 lessons/pictures/measure_mean_gradient.py FILE      rank 0 writes what both hold
"""

import json
import os
import pathlib
import sys

import measure_images
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

BATCH = 32  # of a rank
RATE = 0.1
CLASS = 0  # the weight that is followed is the bias of this class


def gradient(model, inputs, targets):
    """Of the followed weight, by autograd alone."""
    return torch.autograd.grad(cross_entropy(model(inputs), targets), model.bias)[0][CLASS].item()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)  # other weights on each rank, until DDP sends rank 0's
    module = torch.nn.Linear(784, 10)
    built = module.bias[CLASS].item()
    model = DistributedDataParallel(module)
    inputs, targets = measure_images.first(BATCH * dist.get_world_size())
    own = slice(BATCH * rank, BATCH * (rank + 1))
    optimizer = torch.optim.SGD(model.parameters(), RATE)

    weight = module.bias[CLASS].item()
    of_both = gradient(module, inputs, targets)
    of_own = gradient(module, inputs[own], targets[own])
    total = torch.tensor([of_own])
    dist.all_reduce(total)
    cross_entropy(model(inputs[own]), targets[own]).backward()
    reduced = module.bias.grad[CLASS].item()
    optimizer.step()
    held = {"built": built, "weight": weight, "own": of_own, "sum": total.item(), "mean": reduced,
            "weight_after": module.bias[CLASS].item()}
    all_held = [None] * dist.get_world_size()
    dist.all_gather_object(all_held, held)
    if rank == 0:
        figures = {"batch": BATCH, "rate": RATE, "ranks": all_held,
                   "one_process": {"gradient": of_both, "weight_after": weight - RATE * of_both}}
        pathlib.Path(sys.argv[1]).write_text(json.dumps(figures), encoding="utf-8")
    dist.barrier()
    os._exit(0)  # torch 2.11 now and then aborts at a process's end, when Gloo's threads are still there


if __name__ == "__main__":
    main()
