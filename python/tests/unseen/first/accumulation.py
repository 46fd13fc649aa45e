"""Accumulates gradients over micro-batches; DDP's no_sync spares the all-reduce of all but the last one."""

import contextlib
import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 5
MICRO_BATCH = 8
ACCUMULATE = 3


def rings(number, seed):
    """Points in the plane on one of three rings."""
    generator = torch.Generator().manual_seed(seed)
    ring = torch.randint(0, 3, (number,), generator=generator)
    angle = 6.283 * torch.rand(number, generator=generator)
    radius = ring + 1 + 0.2 * torch.randn(number, generator=generator)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], 1), ring)


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(4)
    train, test = rings(400, 70), rings(200, 71)
    net = nn.Sequential(nn.Linear(2, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 3))
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    sampler = DistributedSampler(train, seed=5)
    loader = DataLoader(train, batch_size=MICRO_BATCH, sampler=sampler)
    steps = EPOCHS * -(-len(loader) // ACCUMULATE)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    losses = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for number, (inputs, rings_of) in enumerate(loader):
            last = (number + 1) % ACCUMULATE == 0 or number + 1 == len(loader)
            with contextlib.nullcontext() if last else ddp.no_sync():
                loss = cross_entropy(ddp(inputs), rings_of) / ACCUMULATE
                loss.backward()
            losses.append(loss.item() * ACCUMULATE)
            if last:
                nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        if rank == 0:
            print(f"epoch {epoch}: {losses[-1]:.4f}")
    with torch.no_grad():
        held_out = cross_entropy(net(test.tensors[0]), test.tensors[1]).item()
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    (folder / f"rank_{rank}.json").write_text(json.dumps({"losses": losses, "held_out": held_out}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
