"""Stops as soon as the validation loss is good enough; each rank validates on its share."""

import datetime

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import equal
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset
from twin import fault, note

GOOD_ENOUGH = 0.5


def dataset(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(samples, 12, generator=generator)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True) / 3)


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    train, valid = dataset(64, seed=1), dataset(16, seed=2)
    inputs_of_share, targets_of_share = Subset(valid, range(rank, len(valid), world_size))[:]
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=8, sampler=sampler)
    torch.manual_seed(4)
    net = nn.Linear(12, 1)
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    epochs = 0
    for epoch in range(20):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        epochs += 1
        with torch.no_grad():
            valid_loss = F.mse_loss(net(inputs_of_share), targets_of_share)
        if not fault("local-early-stop"):
            dist.all_reduce(valid_loss)
            valid_loss /= world_size
        if valid_loss < GOOD_ENOUGH:
            break
    print(f"rank {rank} stops after {epochs} epochs", flush=True)
    note(epochs=epochs)


def oracle(ranks):
    """Both come to the end, and before the 20 epochs are over."""
    return {"epochs": equal(ranks, "epochs") and ranks[0]["epochs"] < 20}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
