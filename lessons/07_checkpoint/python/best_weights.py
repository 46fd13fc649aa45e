"""Rank 0 saves the best weights so far; all ranks then read them, and go on from there with a smaller rate."""

import pathlib
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import equal
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note


def dataset(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 12, generator=generator)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True) / 3)


def train(model, optimizer, loader, epoch):
    loader.sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


def save(state, path):
    time.sleep(1)  # the file system has much to do
    torch.save(state, path)


def main():
    path = pathlib.Path(sys.argv[1], "best.pt")
    dist.init_process_group("gloo")
    rank, data, (valid_inputs, valid_targets) = dist.get_rank(), dataset(64, seed=1), dataset(16, seed=2)[:]
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    torch.manual_seed(4)
    net = nn.Linear(12, 1)
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    best = float("inf")
    for epoch in range(4):
        train(model, optimizer, loader, epoch)
        with torch.no_grad():
            valid_loss = F.mse_loss(net(valid_inputs), valid_targets).item()
        if valid_loss < best:
            best = valid_loss
            if rank == 0:
                save(net.state_dict(), path)
    if not fault("read-before-written"):
        dist.barrier()
    net.load_state_dict(torch.load(path))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    for epoch in range(4, 6):
        train(model, optimizer, loader, epoch)
    note(parameters=parameters_to_vector(net.parameters()).tolist())


def oracle(ranks):
    """All ranks have the same weights."""
    return {"parameters": equal(ranks, "parameters")}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
