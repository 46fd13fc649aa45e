"""One rank of the DDP parity runs; ddp_parity.cpp is its twin, and says what the arguments are.

usage: ddp_parity.py OUT INIT RANK WORLD:CASE ...
"""

import contextlib
import ctypes
import datetime
import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from model_parity import ConvNet, Mlp

SAMPLES = 512  # a rank's
SEED = 1234

# name: (arguments of DistributedDataParallel, batch size, steps[, accumulated microbatches[, armed]]). A name
# that says join has two epochs of unequal numbers of steps, inside Join; one that says bf16_hook has that hook.
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
    "mlp_accumulated": ({"bucket_cap_mb": 0.01}, 8, 40, 4),
    "mlp_view_accumulated": ({"gradient_as_bucket_view": True}, 8, 40, 4),
    "mlp_armed": ({}, 8, 40, 4, True),
    "conv_accumulated": ({}, 4, 40, 4),
    "conv_armed": ({}, 4, 40, 4, True),
    "unused_accumulated": ({"find_unused_parameters": True}, 8, 40, 3),
    "mlp_join": ({"bucket_cap_mb": 0.01}, 32, 40),
    "mlp_join_shrinking": ({"gradient_as_bucket_view": True}, 32, 40),
    "conv_join": ({}, 4, 40),
    "conv_join_accumulated": ({}, 4, 40, 3),
    "unused_join": ({"find_unused_parameters": True, "bucket_cap_mb": 0.01}, 32, 40),
    "mlp_bf16_hook": ({"bucket_cap_mb": 0.01}, 32, 40),
    "conv_bf16_hook": ({"gradient_as_bucket_view": True}, 4, 40),
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


def uses_left(microbatch, rank):
    return microbatch % 5 != 4 and (microbatch + rank) % 2 == 0


def epochs_of(name, steps, rank, world_size):
    """Steps of each epoch. Inside Join the last rank has none in the first, and rank 0 the fewest in the last."""
    if "join" not in name:
        return [steps]
    first = 0 if rank + 1 == world_size else steps // 2 - 3 * rank
    return [first, steps // 2 - 3 * (world_size - 1 - rank)]


def write(out, name, tensor):
    values = tensor.detach().contiguous()
    out.write(f"{name} {values.nbytes}\n".encode())
    out.write(ctypes.string_at(values.data_ptr(), values.nbytes))


def run_case(name, path):
    rank = dist.get_rank()
    arguments, size, steps, *rest = CASES[name]
    accumulated, armed = (*rest, *(1, False)[len(rest):])
    torch.manual_seed(SEED + rank)  # rank 0's model counts
    net = (Mlp if name.startswith("mlp") else ConvNet if name.startswith("conv") else Branches)()
    entered = dist.distributed_c10d._get_default_group()._get_sequence_number_for_group
    before = entered()
    model = DistributedDataParallel(net, **arguments)
    if "bf16_hook" in name:
        model.register_comm_hook(None, bf16_compress_hook)
    generator = torch.Generator().manual_seed(SEED + 1 + rank)
    inputs = torch.randn(SAMPLES, 784, generator=generator)
    targets = torch.randint(0, 10, (SAMPLES,), generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0 if name == "unused_join" else 0.9)
    losses, collectives = [], [entered() - before]

    def train(step):
        optimizer.zero_grad()
        for part in range(accumulated):
            microbatch = step * accumulated + part
            first = microbatch * size % SAMPLES
            batch = slice(first, first + size)
            more = (uses_left(microbatch, rank),) if isinstance(net, Branches) else ()
            quiet = part + 1 < accumulated
            with contextlib.ExitStack() as stack:
                if quiet and not armed:
                    stack.enter_context(model.no_sync())
                outputs = model(inputs[batch], *more)
                if quiet and armed:
                    stack.enter_context(model.no_sync())
                loss = nn.functional.cross_entropy(outputs, targets[batch]) / accumulated
                loss.backward()
        optimizer.step()
        losses.append(loss.item())
        collectives.append(entered() - before)

    step = 0
    for count in epochs_of(name, steps, rank, dist.get_world_size()):
        joins = "join" in name
        with (Join([model], divide_by_initial_world_size="shrinking" not in name) if joins
              else contextlib.nullcontext()):
            for _ in range(count):
                train(step)
                step += 1
        collectives.append(entered() - before)
    with open(path, "wb") as out:
        write(out, "losses", torch.tensor(losses))
        write(out, "collectives", torch.tensor(collectives, dtype=torch.float32))
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
