"""Trains on a machine on which another job runs."""

import datetime
import os
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from another_job import start_another_job
from oracles import equal
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note


def other_jobs_port():
    """29500, say: the number that many scripts have."""
    return int(os.environ["MASTER_PORT"])


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def train(rank, world_size, folder):
    if fault("fixed-port"):
        address = f"tcp://127.0.0.1:{other_jobs_port()}"
    else:
        address = f"file://{folder}/rendezvous"  # in a folder that is new for every job
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size,
                            timeout=datetime.timedelta(seconds=8))
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
    own_rank = int(os.environ["RANK"])
    if own_rank == 0:
        other = start_another_job(other_jobs_port())
    train(own_rank, int(os.environ["WORLD_SIZE"]), pathlib.Path(sys.argv[1]).resolve())
