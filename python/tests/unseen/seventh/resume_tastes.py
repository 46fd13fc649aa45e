"""What people will buy, by a table of people, a table of things and a tower; a job lasts three epochs at a time."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel

EPOCHS = 6
SLOT = 3  # epochs
BATCH = 32  # purchases of a rank
OTHERS = 12  # things that were not bought, for each that was
AVERAGE_FROM = 2  # epochs whose weights are not in the average
PEOPLE, THINGS = 80, 50


def purchases(seed):
    """Pairs of a person and a thing's code, to learn from and to test by; every tenth thing is on sale."""
    dice = torch.Generator().manual_seed(seed)
    likes, kinds = torch.randn(PEOPLE, 3, generator=dice), torch.randn(THINGS, 3, generator=dice)
    chances = (1.3 * likes @ kinds.T + 1.5 * (torch.arange(THINGS) % 10 == 0)).softmax(1)
    bought = torch.multinomial(chances, 15, replacement=True, generator=dice).tolist()
    pairs = [[(person, f"article {thing * 37 % 101}") for thing in row] for person, row in enumerate(bought)]
    return [each for row in pairs for each in row[3:]], [each for row in pairs for each in row[:3]]


class Tastes(nn.Module):
    def __init__(self, things, width=16):
        super().__init__()
        self.people = nn.Embedding(PEOPLE, width)
        self.things = nn.Embedding(things, width)
        self.tower = nn.Sequential(nn.Linear(width, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1),
                                   nn.Linear(32, width))

    def forward(self, who, what):
        """The scores of each person's things."""
        return (self.tower(self.people(who))[:, None] * self.things(what)).sum(2)


def settle(net, world):
    """The running statistics become the ranks' means."""
    for one in net.buffers():
        if one.is_floating_point():
            dist.all_reduce(one)
            one /= world


def surprise(net, who, what, things, rank, world):
    """The mean loss of what was bought among all things, over the shares of all ranks."""
    who, what = who[rank::world], what[rank::world]
    net.eval()
    with torch.no_grad():
        scores = net(who, torch.arange(things).expand(len(who), things))
    sums = torch.stack([cross_entropy(scores, what, reduction="sum"), torch.tensor(float(len(who)))])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(60 + rank)
    log, tests = purchases(9)
    numbers = {code: number for number, code in enumerate(sorted({code for _, code in log + tests}))}
    things = len(numbers)
    who, what = (torch.tensor(one) for one in zip(*((person, numbers[code]) for person, code in log), strict=True))
    tested = [torch.tensor(one) for one in zip(*((person, numbers[code]) for person, code in tests), strict=True)]
    common = (torch.bincount(what, minlength=things) + 1.0) ** 0.75
    common /= common.sum()
    net = Tastes(things)
    saved, own = folder / "checkpoint.pt", folder / f"own_{rank}.pt"
    state = torch.load(saved) if saved.exists() else None
    if state:
        net.load_state_dict(state["net"])
    model = DistributedDataParallel(net)
    average = AveragedModel(net, use_buffers=True)
    tables = torch.optim.Adagrad([*net.people.parameters(), *net.things.parameters()], lr=0.15)
    tower = torch.optim.SGD(net.tower.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedules = [StepLR(tables, step_size=2, gamma=0.6), StepLR(tower, step_size=2, gamma=0.3)]
    parts = {"net": net, "average": average, "tables": tables, "tower": tower,
             "rate of tables": schedules[0], "rate of tower": schedules[1]}
    first, losses, seen, drawn, valid = 0, [], [], [], []
    if state:
        for name, part in parts.items():
            part.load_state_dict(state[name])
        first = state["epoch"]
        mine = torch.load(own)
        torch.set_rng_state(mine["dice"])
        losses, seen, drawn, valid = mine["losses"], mine["seen"], mine["drawn"], mine["valid"]
    for epoch in range(first, min(first + SLOT, EPOCHS)):
        model.train()
        order = torch.randperm(len(who), generator=torch.Generator().manual_seed(epoch))
        seen.append([])
        for batch in order[rank::world].split(BATCH):
            people, bought = who[batch], what[batch]
            others = torch.multinomial(common, len(batch) * OTHERS, replacement=True).view(len(batch), OTHERS)
            offered = torch.cat([bought[:, None], others], 1)
            scores = model(people, offered) - common[offered].log()  # common things are offered more often
            loss = cross_entropy(scores, torch.zeros(len(batch), dtype=torch.long))
            net.zero_grad()
            loss.backward()
            tables.step()
            tower.step()
            losses.append(loss.item())
            drawn.append(others.float().mean().item())
            seen[-1] += batch.tolist()
        for schedule in schedules:
            schedule.step()
        settle(net, world)
        if epoch >= AVERAGE_FROM:
            average.update_parameters(net)
        valid.append(surprise(net, *tested, things, rank, world))
        if rank == 0:
            print(f"epoch {epoch}: {losses[-1]:.4f}, tested {valid[-1]:.4f}")
            torch.save({"epoch": epoch + 1, **{name: part.state_dict() for name, part in parts.items()}}, saved)
        torch.save({"dice": torch.get_rng_state(), "losses": losses, "seen": seen, "drawn": drawn, "valid": valid}, own)
    dist.barrier()
    held_out = surprise(average.module, *tested, things, rank, world)
    torch.save(nn.ModuleDict({"net": net, "average": average.module}).state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "drawn": drawn, "held_out": held_out, "valid": valid,
              "rates": [schedule.get_last_lr()[0] for schedule in schedules]}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
