"""One rank of the DDP parity runs; ddp_parity.cpp is its twin, and says what the arguments are.

usage: ddp_parity.py OUT INIT RANK WORLD:CASE ...
"""

import ctypes
import datetime
import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from model_parity import ConvNet, Mlp

SAMPLES = 512  # a rank's
SEED = 1234

# name: (arguments of DistributedDataParallel, batch size, steps)
CASES = {
    "mlp": ({}, 32, 200),
    "mlp_view": ({"gradient_as_bucket_view": True}, 32, 200),
    "mlp_buckets": ({"bucket_cap_mb": 0.01}, 32, 40),
    "mlp_static": ({"static_graph": True}, 32, 40),
    "conv": ({}, 4, 200),
    "conv_view": ({"gradient_as_bucket_view": True}, 4, 40),
    "conv_no_buffers": ({"broadcast_buffers": False}, 4, 200),
    "unused": ({"find_unused_parameters": True}, 32, 200),
    "unused_view": ({"find_unused_parameters": True, "gradient_as_bucket_view": True}, 32, 200),
    "unused_buckets": ({"find_unused_parameters": True, "bucket_cap_mb": 0.01}, 32, 40),
}


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(784, 64)
        self.left = nn.Linear(64, 10)
        self.right = nn.Linear(64, 10)

    def forward(self, x, use_left):
        hidden = torch.relu(self.trunk(x))
        return self.left(hidden) if use_left else self.right(hidden)


def uses_left(step, rank):
    return step % 5 != 4 and (step + rank) % 2 == 0


def write(out, name, tensor):
    values = tensor.detach().contiguous()
    out.write(f"{name} {values.nbytes}\n".encode())
    out.write(ctypes.string_at(values.data_ptr(), values.nbytes))


def run_case(name, path):
    rank = dist.get_rank()
    arguments, size, steps = CASES[name]
    torch.manual_seed(SEED + rank)  # rank 0's model counts
    net = (Mlp if name.startswith("mlp") else ConvNet if name.startswith("conv") else Branches)()
    model = DistributedDataParallel(net, **arguments)
    generator = torch.Generator().manual_seed(SEED + 1 + rank)
    inputs = torch.randn(SAMPLES, 784, generator=generator)
    targets = torch.randint(0, 10, (SAMPLES,), generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for step in range(steps):
        first = step * size % SAMPLES
        batch = slice(first, first + size)
        optimizer.zero_grad()
        more = (uses_left(step, rank),) if isinstance(net, Branches) else ()
        loss = nn.functional.cross_entropy(model(inputs[batch], *more), targets[batch])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with open(path, "wb") as out:
        write(out, "losses", torch.tensor(losses))
        for key, value in [*net.named_parameters(), *net.named_buffers()]:
            write(out, key, value)


def main(out, init, rank, specs):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    timeout = datetime.timedelta(seconds=60)
    one_group = init == "env://"
    if one_group:
        dist.init_process_group("gloo", timeout=timeout)
        rank = dist.get_rank()
    for spec in specs:
        world_size, name = spec.split(":")
        label = f"w{world_size}_{name}"
        if rank >= int(world_size):
            continue
        if not one_group:
            dist.init_process_group("gloo", init_method=init + label, rank=rank,
                                    world_size=int(world_size), timeout=timeout)
        run_case(name, os.path.join(out, f"{label}_r{rank}"))
        if not one_group:
            dist.destroy_process_group()
    if one_group:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
