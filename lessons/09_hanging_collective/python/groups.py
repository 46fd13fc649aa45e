"""A group for all ranks, and one of rank 0 alone for what it gathers."""

import datetime
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import equal
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

TIMEOUT = datetime.timedelta(seconds=5)


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def main():
    rank = int(os.environ["RANK"])
    if fault("rank-skips-init") and rank == 1:
        time.sleep(TIMEOUT.total_seconds() + 2)  # it prepares its data, and believes that this is all it has to do
        return
    dist.init_process_group("gloo", timeout=TIMEOUT)
    if fault("subgroup-created-by-members-only"):
        if rank == 0:
            writers = dist.new_group([0], timeout=TIMEOUT)
    else:
        writers = dist.new_group([0], timeout=TIMEOUT)
    trainers = dist.new_group([0, 1], timeout=TIMEOUT)
    data = dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    torch.manual_seed(4)
    model = DDP(nn.Linear(12, 1), process_group=trainers)
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
    if rank == 0:
        dist.barrier(group=writers)
    note(weights=model.module.weight.tolist())


def oracle(ranks):
    """All ranks come to the end, with the same weights."""
    return {"weights": equal(ranks, "weights")}


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
