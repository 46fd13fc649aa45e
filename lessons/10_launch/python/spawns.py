"""A script that trains with as many processes as it is told, after a tutorial."""

import datetime
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from oracles import equal
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def train(rank, world_size):
    dist.init_process_group("gloo", rank=rank, world_size=world_size, timeout=datetime.timedelta(seconds=8))
    data = dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    torch.manual_seed(4)
    model = DDP(nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note(weights=model.module.weight.tolist())
    dist.destroy_process_group()


def oracle(ranks):
    """All ranks come to the end, with the same weights."""
    return {"weights": equal(ranks, "weights")}


if __name__ == "__main__":
    if fault("spawn-under-launcher"):
        mp.spawn(train, args=(2,), nprocs=2)
    else:
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
