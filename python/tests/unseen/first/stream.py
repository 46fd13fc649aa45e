"""Reads a stream that is shared out by hand to ranks and workers; the loss is a mean over the job's tokens."""

import json
import pathlib
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

EPOCHS = 3
BATCH = 8
DOCUMENTS = 322
WORDS, LENGTH, PAD = 12, 10, -100


def document(number):
    """Words of which each is three more than the last, and where the document ends."""
    words = torch.arange(number, number + 3 * (LENGTH + 1), 3) % WORDS
    length = 2 + number * 7 % LENGTH
    return words[:-1], torch.where(torch.arange(LENGTH) < length, words[1:], PAD), number


class Documents(IterableDataset):
    def __init__(self, rank, world):
        self.rank, self.world, self.epoch = rank, world, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        worker = get_worker_info()
        parts, part = (worker.num_workers, worker.id) if worker else (1, 0)
        order = list(range(DOCUMENTS))
        random.Random(self.epoch).shuffle(order)
        order = order[:DOCUMENTS // (self.world * parts) * self.world * parts]  # as many for each
        for number in order[self.rank * parts + part::self.world * parts]:
            yield document(number)


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    net = nn.Sequential(nn.Embedding(WORDS, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, WORDS))
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    dataset = Documents(rank, world)
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=2)
    losses, seen = [], []
    for epoch in range(EPOCHS):
        dataset.set_epoch(epoch)
        seen.append([])
        for words, following, numbers in loader:
            tokens = (following != PAD).sum()
            dist.all_reduce(tokens)
            total = cross_entropy(ddp(words).flatten(0, 1), following.flatten(), ignore_index=PAD, reduction="sum")
            loss = total * world / tokens
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            seen[-1] += numbers.tolist()
        if rank == 0:
            print(f"epoch {epoch}: {losses[-1]:.4f}")
    with torch.no_grad():
        held_out = cross_entropy(net(torch.arange(WORDS)), (torch.arange(WORDS) + 3) % WORDS).item()
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    (folder / f"rank_{rank}.json").write_text(json.dumps({"losses": losses, "held_out": held_out, "seen": seen}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
