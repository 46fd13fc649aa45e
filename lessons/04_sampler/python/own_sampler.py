"""A sampler of one's own: the same number of samples for each rank, in another order in each epoch."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler, TensorDataset
from twin import fault, note

SAMPLES, EPOCHS = 65, 4


class ShareSampler(Sampler):
    """This rank's share of a data set whose samples may not divide by the ranks."""

    def __init__(self, data):
        self.samples, self.epoch = len(data), 0
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def __len__(self):
        return self.samples // self.world_size

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        even = len(self) * self.world_size
        if fault("tail-never-seen"):
            order = torch.randperm(even, generator=generator)
        else:
            order = torch.randperm(self.samples, generator=generator)[:even]
        return iter(order[self.rank::self.world_size].tolist())

    def set_epoch(self, epoch):
        self.epoch = epoch


def dataset():
    """Each sample comes with its number."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 12, generator=generator)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True), torch.arange(SAMPLES))


def main():
    dist.init_process_group("gloo")
    rank, data = dist.get_rank(), dataset()
    sampler = ShareSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    torch.manual_seed(4)
    model = DDP(nn.Linear(12, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = set()
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets, numbers in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            seen.update(numbers.tolist())
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        print(f"rank {rank}: {len(seen)} samples so far", flush=True)
    note(seen=sorted(seen))


def oracle(ranks):
    """In some epoch some rank has seen each sample."""
    return {"seen": {number for one in ranks for number in one["seen"]} == set(range(SAMPLES))}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
