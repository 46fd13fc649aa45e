"""Who clicks what: both ranks read a log as a stream; the tables have an optimizer of their own."""

import itertools
import json
import pathlib
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

EPOCHS = 2
BATCH = 20
USERS = 40
ITEMS = 60  # the table's size; a shop has fewer


def write_log(number, seed):
    """Events: a user, an item by its number in the shop, and whether it was clicked."""
    dice = random.Random(seed)
    tastes = random.Random(1)
    likes = {(user, item): tastes.random() < 0.5 for user in range(4) for item in range(5)}
    events = []
    for _ in range(number):
        user, item = dice.randrange(USERS), 7000 + 13 * int(50 * dice.random() ** 2)
        liked = likes[user % 4, item % 5]
        events.append((user, item, float(dice.random() < (0.95 if liked else 0.05))))
    return events


class Log(IterableDataset):
    """A rank's share of the events, in another order each epoch."""

    def __init__(self, events, catalogue, rank, world):
        self.events, self.catalogue, self.rank, self.world, self.epoch = events, catalogue, rank, world, 0

    def __iter__(self):
        order = list(range(len(self.events)))
        random.Random(70 + self.epoch).shuffle(order)
        for number in itertools.islice(order, self.rank, None, self.world):
            user, item, clicked = self.events[number]
            yield number, user, self.catalogue.get(item, 0), clicked


class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(USERS, 12)
        self.items = nn.Embedding(ITEMS, 12)
        self.head = nn.Sequential(nn.Linear(36, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, user, item):
        one, other = self.users(user), self.items(item)
        return self.head(torch.cat([one, other, one * other], 1)).squeeze(1)


def in_step(loader):
    """Batches for as long as every rank has one."""
    batches = iter(loader)
    while True:
        batch = next(batches, None)
        all_have = torch.tensor(int(batch is not None))
        dist.all_reduce(all_have, op=dist.ReduceOp.MIN)
        if not all_have:
            return
        yield batch


def evaluate(model, log):
    """The loss and the hit rate over the shares of all ranks."""
    sums = torch.zeros(3)
    with torch.no_grad():
        for _, user, item, clicked in DataLoader(log, batch_size=50):
            score = model(user, item)
            loss = binary_cross_entropy_with_logits(score, clicked.float(), reduction="sum")
            hits = ((score > 0) == (clicked > 0)).sum()
            sums += torch.stack([loss, hits, torch.tensor(float(len(user)))])
    dist.all_reduce(sums)
    loss, hits, count = sums.tolist()
    return loss / count, hits / count


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    events, test_events = write_log(1201, 3), write_log(401, 4)
    catalogue = {item: index for index, item in enumerate(sorted({item for _, item, _ in events}))}
    log = Log(events, catalogue, rank, world)
    torch.manual_seed(rank)
    model = DistributedDataParallel(Tables())
    tables = [*model.module.users.parameters(), *model.module.items.parameters()]
    table_optimizer = torch.optim.Adagrad(tables, lr=0.1)
    optimizer = torch.optim.Adam(model.module.head.parameters(), lr=0.01)
    losses, seen = [], []
    for epoch in range(EPOCHS):
        log.epoch = epoch
        seen.append([])
        for numbers, user, item, clicked in in_step(DataLoader(log, batch_size=BATCH)):
            table_optimizer.zero_grad()
            optimizer.zero_grad()
            loss = binary_cross_entropy_with_logits(model(user, item), clicked.float())
            loss.backward()
            table_optimizer.step()
            optimizer.step()
            losses.append(loss.item())
            seen[-1] += numbers.tolist()
    held_out, hits = evaluate(model.module, Log(test_events, catalogue, rank, world))
    if rank == 0:
        print(f"held-out loss {held_out:.4f}, hit rate {hits:.3f}")
    torch.save(model.module.state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "held_out": held_out, "hits": hits}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
