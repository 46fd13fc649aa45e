"""Two views of each image, one the mirror of the other: a network with BatchNorm shall say the same of both."""

import datetime

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import equal
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note


def dataset():
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.rand(64, 1, 8, 8, generator=generator), torch.randint(0, 3, (64,), generator=generator))


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    rank, data = dist.get_rank(), dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            if fault("buffer-sync-inside-backward"):
                first, second = model(images), model(images.flip(-1))
            else:
                first, second = model(torch.cat([images, images.flip(-1)])).chunk(2)
            loss = F.cross_entropy(first, labels) + F.mse_loss(first, second)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note(weights=net[0].weight.tolist())


def oracle(ranks):
    """All ranks come to the end, with the same weights."""
    return {"weights": equal(ranks, "weights")}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
