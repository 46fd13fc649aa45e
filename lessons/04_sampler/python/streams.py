"""A stream of samples, too long to be indexed, read by two loader workers in each rank."""

import collections
import itertools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import joint
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from twin import fault, note

LENGTH, BATCH, WORKERS, EPOCHS = 64, 8, 2, 2


class Stream(IterableDataset):
    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size

    def read(self):
        generator = torch.Generator().manual_seed(1)
        for number in range(LENGTH):
            inputs = torch.randn(12, generator=generator)
            yield number, inputs, inputs.sum(0, keepdim=True)

    def __iter__(self):
        if fault("stream-not-sharded"):
            yield from self.read()
        else:
            worker = get_worker_info()
            reader, readers = self.rank * WORKERS + worker.id, self.world_size * WORKERS
            yield from itertools.islice(self.read(), reader, None, readers)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    loader = DataLoader(Stream(rank, dist.get_world_size()), batch_size=BATCH, num_workers=WORKERS)
    torch.manual_seed(4)
    model = DDP(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1)))
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
    """An epoch trains on every sample of the stream once."""
    times = collections.Counter(joint([one["seen"] for one in ranks]))
    return {"seen": times == {number: 1 for number in range(LENGTH)}}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
