"""The rate for many GPUs: it rises for some updates, then falls along a cosine until the last one."""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import WORLD, ended_at, joint, steps
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, BATCH, EPOCHS, WARMUP = 256, 32, 8, 8
LR = 1.0  # right for one GPU


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 12, generator=generator)
    return TensorDataset(inputs, (inputs @ torch.randn(12, 4, generator=generator)).argmax(1))


def network():
    """Its weights are large at first."""
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
    for layer in (net[0], net[2]):
        nn.init.normal_(layer.weight, std=0.8)
    return net


def schedule(optimizer, updates):
    if fault("no-warmup"):
        return CosineAnnealingLR(optimizer, T_max=updates)
    else:
        warmup = LinearLR(optimizer, start_factor=0.1, total_iters=WARMUP)
        decay = CosineAnnealingLR(optimizer, T_max=updates - WARMUP)
        return SequentialLR(optimizer, [warmup, decay], milestones=[WARMUP])


def main():
    dist.init_process_group("gloo")
    rank, world_size, data = dist.get_rank(), dist.get_world_size(), dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR * world_size)
    if fault("schedule-length-ignores-world-size"):
        updates = EPOCHS * math.ceil(len(data) / BATCH)
    else:
        updates = EPOCHS * len(loader)
    scheduler = schedule(optimizer, updates)
    losses, rates = [], []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for number, (inputs, targets) in enumerate(loader, 1):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if fault("schedule-unit-mismatch"):
                if number == len(loader):
                    scheduler.step()
            else:
                scheduler.step()
            losses.append(loss.item())
            rates.append(scheduler.get_last_lr()[0])
            if rank == 0:
                print(f"epoch {epoch}, batch {number}: loss {losses[-1]:.4f}, rate {rates[-1]:.4f}", flush=True)
    note(losses=losses, rates=rates, parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """The rate ends at zero, the loss does not rise, and the weights are those of one process."""
    data, model = dataset(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR * WORLD)
    scheduler = schedule(optimizer, EPOCHS * SAMPLES // BATCH // WORLD)
    for parts in steps(SAMPLES, BATCH, EPOCHS):
        inputs, targets = data[joint(parts)]
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        scheduler.step()
    means = [sum(losses) / WORLD for losses in zip(*(one["losses"] for one in ranks), strict=True)]
    return {"parameters": ended_at(ranks, model), "rate": all(one["rates"][-1] < 1e-6 for one in ranks),
            "losses": max(means) < 1.3 * means[0]}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
