"""Training on the CPU: the ranks of this machine share its cores."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def main():
    cores = len(os.sched_getaffinity(0))
    if fault("thread-oversubscription"):
        torch.set_num_threads(cores)
    else:
        torch.set_num_threads(max(1, cores // int(os.environ["WORLD_SIZE"])))
    dist.init_process_group("gloo")
    rank, data = dist.get_rank(), dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    torch.manual_seed(4)
    model = DDP(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1)))
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
    note(threads=torch.get_num_threads(), cores=cores)


def oracle(ranks):
    """There are no more threads than cores, where there is a core for each rank."""
    return {"threads": sum(one["threads"] for one in ranks) <= max(ranks[0]["cores"], len(ranks))}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
