"""One rank of the step benchmark on Python's DDP; ddp_step.cpp is its twin.

usage: ddp_step_rank.py HIDDEN STORE RANK WORLD
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpu"))
from models import Mlp  # noqa: E402

BATCH = 32
BATCHES = 16


def main(hidden, store, rank, world_size):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    torch.manual_seed(1)
    model = DistributedDataParallel(Mlp(hidden))
    torch.manual_seed(2 + rank)
    inputs = torch.randn(BATCHES, BATCH, 784)
    targets = torch.randint(0, 10, (BATCHES, BATCH))
    # foreach=False is what None comes to on the CPU, and the form of LibTorch's SGD.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=False)
    done = 0
    for line in sys.stdin:
        dist.barrier()
        start = time.monotonic_ns()
        for _ in range(int(line)):
            optimizer.zero_grad()
            batch = done % BATCHES
            nn.functional.cross_entropy(model(inputs[batch]), targets[batch]).backward()
            optimizer.step()
            done += 1
        dist.barrier()
        print(time.monotonic_ns() - start, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
