"""A worker reads ahead while something is printed of the weights; the loader is made from the usual one."""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import ended_at, joint, steps
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import get_total_norm, parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, BATCH, EPOCHS, LR = 64, 8, 4, 0.05


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def network():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))


def prepared(loader):
    """A loader like this one, with settings that suit our machines."""
    return DataLoader(loader.dataset, batch_size=loader.batch_size, sampler=copy.copy(loader.sampler),
                      num_workers=1, prefetch_factor=2)


def main():
    dist.init_process_group("gloo")
    rank, data = dist.get_rank(), dataset()
    sampler = DistributedSampler(data)
    loader = prepared(DataLoader(data, batch_size=BATCH, sampler=sampler))
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for epoch in range(EPOCHS):
        if fault("set-epoch-on-copy"):
            sampler.set_epoch(epoch)
            batches = iter(loader)
        elif fault("epoch-set-after-prefetch"):
            batches = iter(loader)
            loader.sampler.set_epoch(epoch)
        else:
            loader.sampler.set_epoch(epoch)
            batches = iter(loader)
        if rank == 0:
            print(f"epoch {epoch}: the weights' norm is {get_total_norm(model.parameters()):.4f}", flush=True)
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note(parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """Each rank has the weights that one process gets from every sample once an epoch, in an order of its own."""
    data, model = dataset(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for parts in steps(SAMPLES, BATCH, EPOCHS):
        inputs, targets = data[joint(parts)]
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return {"parameters": ended_at(ranks, model)}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
