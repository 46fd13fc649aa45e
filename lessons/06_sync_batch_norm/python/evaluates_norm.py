"""A network with BatchNorm; after each epoch all ranks evaluate it on the same small test set."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, BATCH, EPOCHS = 64, 8, 4


def dataset(samples, seed, shift):
    generator = torch.Generator().manual_seed(seed)
    inputs = shift + 2 * torch.randn(samples, 12, generator=generator)
    return TensorDataset(inputs, (inputs[:, 0] > inputs[:, 1]).long())


def evaluate(model, loader):
    """How many samples it gets right."""
    hits = 0
    if not fault("evaluation-in-train-mode"):
        model.eval()
    with torch.no_grad():
        for inputs, targets in loader:
            hits += (model(inputs).argmax(1) == targets).sum().item()
    model.train()
    return hits


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    train, test = dataset(SAMPLES, seed=1, shift=3), dataset(16, seed=2, shift=4)
    sampler = DistributedSampler(train)
    loader, test_loader = DataLoader(train, batch_size=BATCH, sampler=sampler), DataLoader(test, batch_size=4)
    torch.manual_seed(9)
    model = DDP(nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        hits = evaluate(model, test_loader)
        if rank == 0:
            print(f"epoch {epoch}: accuracy {hits / len(test):.4f}", flush=True)
    note(batches=model.module[1].num_batches_tracked.item())


def oracle(ranks):
    """The running statistics are of the training batches, and of no others."""
    return {"batches": all(one["batches"] == EPOCHS * SAMPLES // len(ranks) // BATCH for one in ranks)}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
