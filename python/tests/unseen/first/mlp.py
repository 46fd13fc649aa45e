"""Classifies points with an MLP under DistributedDataParallel; DistributedSampler deals the epochs."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 4
BATCH = 16
RATE = 0.1
DECAY = 1e-3
CLASSES = ["ant", "bee", "cat", "dog"]


def points(number, seed, classes):
    """Points, the names of their quadrants as class numbers, and their ids."""
    inputs = torch.randn(number, 12, generator=torch.Generator().manual_seed(seed))
    quadrant = (inputs[:, :4].sum(1) > 0).long() + 2 * (inputs[:, 4:8].sum(1) > 0).long()
    labels = torch.tensor([classes.index(CLASSES[one]) for one in quadrant])
    return TensorDataset(inputs, labels, torch.arange(number))


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    classes = sorted(CLASSES)
    train, test = points(512, 10, classes), points(256, 11, classes)
    net = torch.nn.Sequential(torch.nn.Linear(12, 48), torch.nn.ReLU(), torch.nn.Linear(48, 4))
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=RATE, momentum=0.9, weight_decay=DECAY)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.3)
    sampler = DistributedSampler(train, shuffle=True, seed=3)
    loader = DataLoader(train, batch_size=BATCH, sampler=sampler)
    losses, seen = [], []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        seen.append([])
        ddp.train()
        for inputs, labels, ids in loader:
            optimizer.zero_grad()
            loss = cross_entropy(ddp(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            seen[-1] += ids.tolist()
        scheduler.step()
        if rank == 0:
            print(f"epoch {epoch}: {losses[-1]:.4f}")
    net.eval()
    with torch.no_grad():
        held_out = cross_entropy(net(test.tensors[0]), test.tensors[1]).item()
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    (folder / f"rank_{rank}.json").write_text(json.dumps({"losses": losses, "held_out": held_out, "seen": seen}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
