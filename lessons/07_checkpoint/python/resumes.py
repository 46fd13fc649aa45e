"""Saves a checkpoint after each epoch and goes on from the last one: half of the epochs, then started again."""

import pathlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import ended_at, joint, steps
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, BATCH, EPOCHS, LR, MOMENTUM = 64, 8, 4, 0.02, 0.9


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
    rank, data, net = dist.get_rank(), dataset(), network()
    saved = torch.load(path) if path.exists() else None
    if saved:
        net.load_state_dict(saved["model"])
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    first = 0
    if saved:
        if not fault("optimizer-state-missing"):
            optimizer.load_state_dict(saved["optimizer"])
        if fault("resume-repeats-epoch"):
            first = saved["epoch"]
        else:
            first = saved["epoch"] + 1
    last = EPOCHS if saved else EPOCHS // 2  # the first job's time is over after half of the epochs
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    for epoch in range(first, last):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        if rank == 0:
            state = model.state_dict() if fault("module-prefix") else net.state_dict()
            torch.save({"model": state, "optimizer": optimizer.state_dict(), "epoch": epoch}, path)
        dist.barrier()
    note(parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """Each rank has the weights of one process that was never interrupted."""
    data, model = dataset(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    for parts in steps(SAMPLES, BATCH, EPOCHS):
        inputs, targets = data[joint(parts)]
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return {"parameters": ended_at(ranks, model)}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
