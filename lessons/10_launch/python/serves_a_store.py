"""Rank 0's machine has two network interfaces: rank 0 serves the store at the address of one."""

import datetime
import os
import socket

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import equal
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

IN_TIME = datetime.timedelta(seconds=8)
OWN_NAME = "127.0.0.2"  # what the machine's own name stands for in its /etc/hosts


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def meet(rank, world_size):
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0:
        if fault("wrong-network-interface"):
            address = OWN_NAME
        listening = socket.create_server((address, port))
        return dist.TCPStore(address, port, world_size, True, IN_TIME, master_listen_fd=listening.detach())
    return dist.TCPStore(address, port, world_size, False, IN_TIME)


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = meet(rank, world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=IN_TIME)
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
    dist.barrier()


def oracle(ranks):
    """All ranks come to the end, with the same weights."""
    return {"weights": equal(ranks, "weights")}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
