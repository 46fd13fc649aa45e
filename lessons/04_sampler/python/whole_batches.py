"""A smoke test on a few samples. Every rank gets whole batches: samples are repeated until there are enough."""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import joint
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler, TensorDataset
from twin import fault, note

SAMPLES, BATCH, EPOCHS = 6, 8, 5


class WholeBatches(Sampler):
    """This rank's places of a list that begins anew where the data set ends."""

    def __init__(self, data):
        self.samples, self.rank, self.world_size = len(data), dist.get_rank(), dist.get_world_size()
        self.places = math.ceil(self.samples / (self.world_size * BATCH)) * self.world_size * BATCH

    def __len__(self):
        return self.places // self.world_size

    def __iter__(self):
        for place in range(self.rank, self.places, self.world_size):
            if fault("padding-overruns"):
                yield place if place < self.samples else place - self.samples
            else:
                yield place % self.samples


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    inputs = torch.randn(SAMPLES, 12, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(torch.arange(SAMPLES), inputs, inputs.sum(1, keepdim=True))
    loader = DataLoader(data, batch_size=BATCH, sampler=WholeBatches(data))
    torch.manual_seed(4)
    model = DDP(nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(EPOCHS):
        seen = []
        for numbers, inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            seen += numbers.tolist()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note(seen=seen)


def oracle(ranks):
    """Both ranks have whole batches, and every sample is in one."""
    return {"batches": all(len(one["seen"]) == BATCH for one in ranks),
            "seen": set(joint([one["seen"] for one in ranks])) == set(range(SAMPLES))}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
