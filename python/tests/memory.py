"""Trains 268 MB of parameters for a few steps, and prints by how many MB the process's peak rose meanwhile.

usage: memory.py alone | ddp | view
"""

import pathlib
import resource
import sys

import torch
import torch.distributed as dist
from torch import nn

STEPS = 6  # of the last one nothing is looked at


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def main(kind):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(2048, 2048, bias=False) for _ in range(16)])
    if kind != "alone":
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=kind == "view")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(4, 2048)
    before = resident()
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(inputs).pow(2).mean().backward()
        optimizer.step()
    print(round(peak() - before))


if __name__ == "__main__":
    main(sys.argv[1])
