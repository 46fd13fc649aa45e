"""A recommender of two towers: users meet the items of a log, among all items of the job's batch."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

SEED = 23
EPOCHS = 6
BATCH = 64
USERS = 48
ITEMS = 64
SHARDS = 8
IN_SHARD = 128
WIDTH = 16


def visits(number, dice):
    """Users, and the items that they went to; half of these are well liked by the user's kind."""
    users = torch.randint(0, USERS, (number,), generator=dice)
    popular = (ITEMS * torch.rand(number, generator=dice) ** 2).long()
    liked = (7 * (users % 8) + torch.randint(0, 5, (number,), generator=dice)) % ITEMS
    return torch.stack([users, torch.where(torch.rand(number, generator=dice) < 0.5, liked, popular)], 1)


def write(folder):
    """The log in shards, and the items' catalogue, which has the item's number by its name."""
    dice = torch.Generator().manual_seed(SEED)
    for shard in range(SHARDS):
        torch.save(visits(IN_SHARD, dice), folder / f"log_{shard}.pt")
    (folder / "catalogue.json").write_text(json.dumps({f"item {item}": item for item in range(ITEMS)}))


class Log(IterableDataset):
    """The rank's shards of the log, in another order each epoch; each visit with its number in the log."""

    def __init__(self, folder, rank, world):
        self.folder, self.rank, self.world, self.epoch = folder, rank, world, 0
        self.catalogue = json.loads((folder / "catalogue.json").read_text())

    def __iter__(self):
        dice = torch.Generator().manual_seed(SEED + self.epoch)
        mine = torch.randperm(SHARDS, generator=dice).tolist()[self.rank::self.world]
        rows = [(shard * IN_SHARD + place, user, self.catalogue[f"item {item}"]) for shard in mine
                for place, (user, item) in enumerate(torch.load(self.folder / f"log_{shard}.pt").tolist())]
        for place in torch.randperm(len(rows), generator=dice).tolist():
            yield rows[place]


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Sequential(nn.Embedding(USERS, WIDTH), nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH))
        self.items = nn.Sequential(nn.Embedding(ITEMS, WIDTH), nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH))
        self.heat = nn.Parameter(torch.tensor(1.5))

    def forward(self, users, items):
        return normalize(self.users(users), dim=1), normalize(self.items(items), dim=1) * self.heat.exp()


def gathered(tensor, rank, world):
    """All ranks' rows; the gradient flows to the own ones."""
    parts = [torch.empty_like(tensor) for _ in range(world)]
    dist.all_gather(parts, tensor.detach())
    parts[rank] = tensor
    return torch.cat(parts)


def popularity(log):
    """The part of all visits that each item has, as a logarithm."""
    counts = torch.bincount(torch.tensor([item for _, _, item in log]), minlength=ITEMS).float()
    dist.all_reduce(counts)
    return ((counts + 1) / (counts + 1).sum()).log()


@torch.no_grad()
def evaluate(net, catalogue, rank, world):
    """The loss among all items, over visits that are in no log."""
    users, names = visits(400, torch.Generator().manual_seed(SEED + 1))[rank::world].unbind(1)
    items = torch.tensor([catalogue[f"item {name}"] for name in names.tolist()])
    sides = net(users, torch.arange(ITEMS))
    sums = torch.stack([cross_entropy(sides[0] @ sides[1].T, items, reduction="sum"), torch.tensor(float(len(users)))])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        write(folder)
    dist.barrier()
    torch.manual_seed(SEED)
    log = Log(folder, rank, world)
    loader = DataLoader(log, BATCH, drop_last=True)
    weight = popularity(log)
    net = Towers()
    model = DistributedDataParallel(net)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-2)
    steps = EPOCHS * SHARDS * IN_SHARD // world // BATCH
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    losses, seen, rates = [], [], []
    for epoch in range(EPOCHS):
        log.epoch = epoch
        seen.append([])
        for numbers, users, items in loader:
            user_side, item_side = model(users, items)
            user_side, item_side = gathered(user_side, rank, world), gathered(item_side, rank, world)
            every = gathered(items, rank, world)
            scores = user_side @ item_side.T - weight[every]  # popular items are met more often in a batch
            twice = (every[:, None] == every) & ~torch.eye(len(every), dtype=torch.bool)
            scores = scores.masked_fill(twice, -torch.inf)  # the same item is no wrong answer
            loss = cross_entropy(scores, torch.arange(len(every)))
            optimizer.zero_grad()
            (loss * world).backward()  # each rank has its rows' part of the gradient, and DDP takes the mean
            optimizer.step()
            rates.append(optimizer.param_groups[0]["lr"])
            scheduler.step()
            losses.append(loss.item())
            seen[-1] += numbers.tolist()
        optimizer.consolidate_state_dict(to=0)
        if rank == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.3f}")
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, folder / "last.pt")
    held_out = evaluate(net, log.catalogue, rank, world)
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "held_out": held_out, "rates": rates, "popularity": weight.tolist()}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
