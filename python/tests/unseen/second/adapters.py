"""Fine-tunes with low-rank adapters on frozen layers: a rate for each group, four micro-batches to an update."""

import json
import pathlib
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

UPDATES = 40
ACCUMULATE = 4
BATCH = 8
RANK_OF_ADAPTERS = 4
WORDS = 12
LENGTH = 10


def sentences(number, seed):
    """There are three kinds of words; which one has the most in a sentence?"""
    words = torch.randint(0, WORDS, (number, LENGTH), generator=torch.Generator().manual_seed(seed))
    return words, nn.functional.one_hot(words % 3, 3).sum(1).argmax(1)


class Reader(nn.Module):
    """What was trained elsewhere: each sentence is read by one head of attention."""

    def __init__(self, width=32):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)

    def forward(self, words):
        hidden = self.words(words) + self.places.weight
        query, key = self.query(hidden), self.key(hidden)
        weights = (query @ key.transpose(1, 2) / query.shape[-1] ** 0.5).softmax(-1)
        return self.head(self.norm(hidden + weights @ self.value(hidden))[:, 0])


class Adapted(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.down = nn.Parameter(torch.randn(RANK_OF_ADAPTERS, layer.in_features) / layer.in_features ** 0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, RANK_OF_ADAPTERS))

    def forward(self, hidden):
        return self.layer(hidden) + hidden @ self.down.T @ self.up.T


def adapt(reader):
    reader.requires_grad_(False)
    for name in ("query", "key", "value"):
        setattr(reader, name, Adapted(getattr(reader, name)))
    reader.head.requires_grad_(True)
    return reader


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    reader = Reader()
    torch.manual_seed(20 + rank)
    reader = adapt(reader)
    model = DistributedDataParallel(reader)
    adapters = [one for name, one in reader.named_parameters() if name.endswith((".down", ".up"))]
    optimizer = torch.optim.SGD([{"params": adapters, "lr": 0.3},
                                 {"params": reader.head.parameters(), "lr": 0.1, "weight_decay": 0.01}], momentum=0.9)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=UPDATES)
    words, classes = (part[rank::world] for part in sentences(1200, 80))
    dice = torch.Generator().manual_seed(30 + rank)
    losses = []
    for update in range(UPDATES):
        optimizer.zero_grad()
        total = 0.0
        for micro in range(ACCUMULATE):
            chosen = torch.randint(0, len(words), (BATCH,), generator=dice)
            with model.no_sync() if micro < ACCUMULATE - 1 else nullcontext():
                loss = cross_entropy(model(words[chosen]), classes[chosen]) / ACCUMULATE
                loss.backward()
            total += loss.item()
        optimizer.step()
        schedule.step()
        losses.append(total)
        if rank == 0 and update % 10 == 0:
            print(f"update {update}: {total:.4f}")
    with torch.no_grad():
        test_words, test_classes = sentences(600, 81)
        held_out = cross_entropy(reader(test_words), test_classes).item()
    torch.save(reader.state_dict(), folder / f"rank_{rank}.pt")
    (folder / f"rank_{rank}.json").write_text(json.dumps({"losses": losses, "held_out": held_out}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
