"""Rank 0 alone validates after each epoch, a model with BatchNorm; rank 1 goes on to the next epoch and waits there."""

import datetime
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

TIMEOUT = datetime.timedelta(seconds=4)  # of a collective


def dataset(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 12, generator=generator)
    return TensorDataset(inputs, (inputs[:, 0] > inputs[:, 1]).long())


def validate(model, loader):
    if fault("rank-zero-long-work"):
        time.sleep(TIMEOUT.total_seconds() + 2)  # as long as the full validation set takes
    hits = 0
    model.eval()
    with torch.no_grad():
        for inputs, targets in loader:
            hits += (model(inputs).argmax(1) == targets).sum().item()
    model.train()
    return hits


def main():
    dist.init_process_group("gloo", timeout=TIMEOUT)
    rank = dist.get_rank()
    torch.manual_seed(9)
    train, test = dataset(64, seed=1), dataset(32, seed=2)
    sampler = DistributedSampler(train)
    loader, test_loader = DataLoader(train, batch_size=8, sampler=sampler), DataLoader(test, batch_size=8)
    net = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        if rank == 0:
            if fault("evaluation-through-wrapper-on-one-rank"):
                hits = validate(model, test_loader)
            else:
                hits = validate(net, test_loader)
            print(f"epoch {epoch}: accuracy {hits / len(test):.4f}", flush=True)
    dist.barrier()
    note()


def oracle(ranks):
    """All ranks come to the end."""
    return {}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
