"""Trains an autoencoder in mixed precision: bfloat16 autocast, a gradient scaler and clipping."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 4
BATCH = 16


def signals(number, seed):
    """Sums of four waves: 32 numbers with four of information."""
    generator = torch.Generator().manual_seed(seed)
    waves = torch.stack([(torch.arange(32) * k / 5).sin() for k in (1, 2, 3, 4)])
    return TensorDataset(torch.randn(number, 4, generator=generator) @ waves)


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(9)
    train, test = signals(512, 120), signals(128, 121)
    net = nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 6), nn.LayerNorm(6),
        nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 32))
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.03, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    sampler = DistributedSampler(train, seed=9)
    loader = DataLoader(train, batch_size=BATCH, sampler=sampler)
    losses, means = [], []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for (inputs,) in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                outputs = ddp(inputs)
            loss = mse_loss(outputs.float(), inputs)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(ddp.parameters(), 0.6)
            scaler.step(optimizer)
            scaler.update()
            total += loss.detach() * len(inputs)
            losses.append(loss.item())
        dist.all_reduce(total)
        means.append(total.item() / len(train))
        if rank == 0:
            print(f"epoch {epoch}: {means[-1]:.4f}")
    with torch.no_grad():
        held_out = mse_loss(net(test.tensors[0]), test.tensors[0]).item()
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    (folder / f"rank_{rank}.json").write_text(json.dumps({"losses": losses, "held_out": held_out, "means": means}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
