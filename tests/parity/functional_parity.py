"""One rank of the parity runs of collectives with a gradient; functional_parity.cpp is its twin.

usage: functional_parity.py OUT INIT RANK WORLD ...
"""

import datetime
import os
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as functional

from ddp_parity import write

STEPS = 20
SEED = 77


def run_world(world, rank, path):
    own = torch.Generator().manual_seed(SEED + 1 + rank)
    losses, gathered, reduced = [], [], []
    for _ in range(STEPS):
        x = torch.randn(5, 7, generator=own).requires_grad_()
        everyone = torch.cat(functional.all_gather(x))
        loss = (torch.tanh(everyone) * (rank + 1)).sum() + everyone.mm(everyone.t()).pow(2).mean()
        loss.backward()
        gathered.append(x.grad)
        y = torch.randn(5, 7, generator=own).requires_grad_()
        total = functional.all_reduce(y.pow(3))
        (torch.tanh(total) * (rank + 1)).sum().backward()
        reduced.append(y.grad)
        losses.append(loss.item())
    with open(path, "wb") as out:
        write(out, "losses", torch.tensor(losses))
        write(out, "gathered", torch.stack(gathered))
        write(out, "reduced", torch.stack(reduced))


def main(out, init, rank, worlds):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for world in worlds:
        if rank >= world:
            continue
        dist.init_process_group("gloo", init_method=f"{init}{world}", rank=rank, world_size=world,
                                timeout=datetime.timedelta(seconds=60))
        run_world(world, rank, os.path.join(out, f"w{world}_r{rank}"))
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), [int(world) for world in sys.argv[4:]])
