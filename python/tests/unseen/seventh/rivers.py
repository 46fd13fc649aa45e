"""Levels of rivers, six hours ahead, as three quantiles; gauges fail now and then. It stops when it learns no more."""

import copy
import json
import pathlib
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

EPOCHS = 16  # at most
PATIENCE = 2  # epochs whose validation is not better by a hundredth
GAIN = 0.99
GAUGES = 12
HOURS = 330
PAST, AHEAD = 16, 6
BATCH = 16  # windows of a rank
QUANTILES = torch.tensor([0.1, 0.5, 0.9])


def measured(seed):
    """Levels of each gauge by hour, NaN where it failed: rain comes at random, runs off, and there is a tide."""
    dice = torch.Generator().manual_seed(seed)
    rain = (torch.rand(GAUGES, HOURS, generator=dice) < 0.06) * 3 * torch.rand(GAUGES, HOURS, generator=dice)
    size, level, rows = 1 + torch.rand(GAUGES, generator=dice), torch.zeros(GAUGES), []
    for hour in range(HOURS):
        level = 0.9 * level + rain[:, max(0, hour - 2)]
        rows.append(size * (4 + level + torch.tensor(hour * 0.52).sin()))
    levels = torch.stack(rows, 1) + 0.15 * torch.randn(GAUGES, HOURS, generator=dice)
    levels[torch.rand(GAUGES, HOURS, generator=dice) < 0.08] = torch.nan
    return levels


class Windows(IterableDataset):
    """A rank's windows of an epoch. All ranks shuffle alike; what fills no batch of every rank is left out."""

    def __init__(self, levels, rank, world):
        self.levels, self.rank, self.world, self.epoch = levels, rank, world, 0
        self.starts = [(gauge, hour) for gauge in range(GAUGES) for hour in range(0, HOURS - PAST - AHEAD + 1, 10)]

    def __iter__(self):
        order = list(range(len(self.starts)))
        random.Random(self.epoch).shuffle(order)
        whole = len(order) // (BATCH * self.world) * BATCH * self.world
        for number in order[:whole][self.rank::self.world]:
            gauge, hour = self.starts[number]
            yield number, self.levels[gauge, hour:hour + PAST + AHEAD]


class Forecast(nn.Module):
    """Reads the level and whether it was measured; foretells changes from the last level that was."""

    def __init__(self, hidden=24):
        super().__init__()
        self.read = nn.GRU(2, hidden, batch_first=True)
        self.tell = nn.Linear(hidden, AHEAD * len(QUANTILES))

    def forward(self, past):
        known = ~past.isnan()
        inputs = torch.stack([past.nan_to_num(0.0), known.float()], 2)
        return self.tell(self.read(inputs)[1][0]).unflatten(1, (AHEAD, len(QUANTILES)))


def pinball(guesses, future):
    """The sum over values that were measured, and their number."""
    known = ~future.isnan()
    error = future.nan_to_num(0.0)[:, :, None] - guesses
    each = torch.maximum(QUANTILES * error, (QUANTILES - 1) * error)
    return (each * known[:, :, None]).sum(), known.sum().float()


def spread(levels, rank, world):
    """Mean and deviation of all levels; each rank sums its own gauges."""
    own = levels[rank::world].double()
    known = ~own.isnan()
    sums = torch.stack([known.sum().double(), own.nansum(), own.square().nansum()])
    dist.all_reduce(sums)
    mean = sums[1] / sums[0]
    return mean.float(), (sums[2] / sums[0] - mean * mean).sqrt().float()


def add_up(net):
    """Gradients become their sums over the ranks, sent as one."""
    grads = [one.grad for one in net.parameters()]
    flat = torch.cat([one.flatten() for one in grads])
    dist.all_reduce(flat)
    for one, part in zip(grads, flat.split([one.numel() for one in grads]), strict=True):
        one.copy_(part.view_as(one))


def validate(net, levels, rank, world):
    """The mean loss of a value, over the gauges of all ranks."""
    windows = levels[rank::world].unfold(1, PAST + AHEAD, 15).flatten(0, 1)
    with torch.no_grad():
        sums = torch.stack(pinball(net(windows[:, :PAST]), windows[:, PAST:]))
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    levels, others = measured(21), measured(22)
    mean, deviation = spread(levels, rank, world)
    windows = Windows((levels - mean) / deviation, rank, world)
    others = (others - mean) / deviation
    torch.manual_seed(500 + rank)
    net = Forecast()
    for one in net.parameters():
        dist.broadcast(one.data, src=0)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.04, amsgrad=True)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="min", factor=0.25, patience=0)
    losses, seen, valid = [], [], []
    best, kept, waited = float("inf"), None, 0
    for epoch in range(EPOCHS):
        windows.epoch = epoch
        seen.append([])
        for numbers, batch in DataLoader(windows, batch_size=BATCH):
            loss, count = pinball(net(batch[:, :PAST]), batch[:, PAST:])
            dist.all_reduce(count)
            optimizer.zero_grad()
            (loss / count).backward()
            add_up(net)
            nn.utils.clip_grad_norm_(net.parameters(), 0.3)
            optimizer.step()
            losses.append((loss / count).item())
            seen[-1] += numbers.tolist()
        valid.append(validate(net, others, rank, world))
        schedule.step(valid[-1])
        if rank == 0:
            print(f"epoch {epoch}: {valid[-1]:.4f} at rate {optimizer.param_groups[0]['lr']:.5f}")
        waited += 1
        if valid[-1] < GAIN * best:
            best, kept, waited = valid[-1], copy.deepcopy(net.state_dict()), 0
        if waited == PATIENCE:
            break
    net.load_state_dict(kept)
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "held_out": validate(net, others, rank, world), "best": best,
              "mean": mean.item(), "deviation": deviation.item(), "valid": valid}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
