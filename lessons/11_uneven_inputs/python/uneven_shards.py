"""Each rank has a shard of its own, and the shards are not equally long."""

import contextlib
import datetime

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset
from twin import fault, note

SHARDS = [range(0, 40), range(40, 64)]


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    rank = dist.get_rank()
    torch.manual_seed(4)
    loader = DataLoader(Subset(dataset(), SHARDS[rank]), batch_size=8, shuffle=True)
    model = DDP(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    updates = 0
    for epoch in range(3):
        with contextlib.nullcontext() if fault("uneven-batches") else Join([model]):
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = F.mse_loss(model(inputs), targets)
                loss.backward()
                optimizer.step()
                updates += 1
                if rank == 0:
                    print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    dist.barrier()
    note(updates=updates)


def oracle(ranks):
    """Both come to the end, with as many updates as their shards have batches."""
    return {"updates": [one["updates"] for one in ranks] == [15, 9]}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
