"""Saves a checkpoint twice an epoch; a job whose time is over in the middle of an epoch goes on where it was."""

import pathlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import WORLD, ended_at, joint, steps
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, BATCH, EPOCHS, LR, MOMENTUM = 64, 4, 3, 0.02, 0.9


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def network():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))


def main():
    path = pathlib.Path(sys.argv[1], "checkpoint.pt")
    dist.init_process_group("gloo")
    rank, world_size, data, net = dist.get_rank(), dist.get_world_size(), dataset(), network()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    scheduler = LinearLR(optimizer, 1.0, 0.0, total_iters=EPOCHS * SAMPLES // (BATCH * world_size))
    first_epoch, seen = 0, 0
    saved = torch.load(path) if path.exists() else None
    if saved:
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        if not fault("scheduler-or-rng-state-missing"):
            scheduler.load_state_dict(saved["scheduler"])
        first_epoch, seen = saved["epoch"], saved["seen"]
    model = DDP(net)
    sampler = DistributedSampler(data)
    for epoch in range(first_epoch, EPOCHS):
        sampler.set_epoch(epoch)
        if fault("resume-mid-epoch-replays"):
            loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
        else:
            loader = DataLoader(data, batch_size=BATCH, sampler=list(sampler)[seen // world_size:])
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            scheduler.step()
            seen += len(inputs) * world_size  # of this epoch, by all ranks
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}, rate {scheduler.get_last_lr()[0]:.4f}", flush=True)
            if seen % (SAMPLES // 2) == 0:
                if rank == 0:
                    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(),
                                "scheduler": scheduler.state_dict(), "epoch": epoch, "seen": seen}, path)
                dist.barrier()
                if not saved and epoch == 1:
                    return  # the first job's time is over
        seen = 0
    note(parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """Each rank has the weights of one process that was never interrupted."""
    data, model = dataset(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    scheduler = LinearLR(optimizer, 1.0, 0.0, total_iters=EPOCHS * SAMPLES // (BATCH * WORLD))
    for parts in steps(SAMPLES, BATCH, EPOCHS):
        inputs, targets = data[joint(parts)]
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        scheduler.step()
    return {"parameters": ended_at(ranks, model)}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
