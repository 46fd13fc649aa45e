"""A recipe with Adam for one GPU, taken to several: the rate grows with the root of the batch."""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import WORLD, ended_at, joint, steps
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, BATCH, EPOCHS = 64, 8, 4
LR = 0.003  # right for one GPU with batches of 8


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def network():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))


def main():
    dist.init_process_group("gloo")
    world_size, data = dist.get_world_size(), dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    model = DDP(network())
    if fault("linear-rule-with-adam"):
        optimizer = torch.optim.Adam(model.parameters(), lr=LR * world_size)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=LR * math.sqrt(world_size))
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note(parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """Each rank has the weights that the recipe with the root gives on one process with the whole batch."""
    data, model = dataset(), network()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR * math.sqrt(WORLD))
    for parts in steps(SAMPLES, BATCH, EPOCHS):
        inputs, targets = data[joint(parts)]
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return {"parameters": ended_at(ranks, model, 1e-3)}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
