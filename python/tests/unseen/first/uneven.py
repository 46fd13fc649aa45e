"""Each rank reads its own files, of unequal sizes, under Join; the loss weighs classes by the whole job's counts."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms import Join
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 3
SAMPLES = {0: 320, 1: 272}  # of the files that a rank reads
CLASSES = 3


def clinics(number, shares, seed):
    """Patients of one clinic: the classes are rare in one and common in another."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(torch.tensor(shares), number, replacement=True, generator=generator)
    centres = 1.5 * torch.eye(CLASSES, 8)
    return TensorDataset(centres[labels] + torch.randn(number, 8, generator=generator), labels)


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(10)
    train = clinics(SAMPLES[rank], [0.8, 0.15, 0.05] if rank == 0 else [0.85, 0.03, 0.12], 130 + rank)
    test = clinics(300, [1.0, 1.0, 1.0], 140)
    counts = torch.bincount(train.tensors[1], minlength=CLASSES).float()
    dist.all_reduce(counts)
    weights = counts.sum() / (CLASSES * counts)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, CLASSES))
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(150 + rank)
    loader = DataLoader(train, batch_size=16, shuffle=True, generator=generator)
    losses = []
    for epoch in range(EPOCHS):
        with Join([ddp]):
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss = cross_entropy(ddp(inputs), labels, weight=weights)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        if rank == 0:
            print(f"epoch {epoch}: {losses[-1]:.4f}")
    with torch.no_grad():
        held_out = cross_entropy(net(test.tensors[0]), test.tensors[1]).item()
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    (folder / f"rank_{rank}.json").write_text(
        json.dumps({"losses": losses, "held_out": held_out, "weights": weights.tolist()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
