"""Electricity demand of districts some hours ahead: recurrent, under DDP; validation sets the rate and ends it all."""

import copy
import json
import math
import pathlib
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data.distributed import DistributedSampler

DISTRICTS = 5


@dataclass
class Config:
    epochs: int = 8
    batch: int = 28
    hidden: int = 24
    lr: float = 2e-2
    clip: float = 0.5
    past: int = 24
    ahead: int = 6
    days: int = 40
    seed: int = 7


def history(config: Config):
    """Demand, temperature and holidays by district and hour."""
    dice = torch.Generator().manual_seed(config.seed)
    hours = torch.arange(config.days * 24.0)
    phase = torch.rand(DISTRICTS, 1, generator=dice) * 4
    size = 40 + 20 * torch.rand(DISTRICTS, 1, generator=dice)
    holiday = (torch.rand(config.days, generator=dice) < 0.25).float().repeat_interleave(24)
    cold = 5 * torch.randn(DISTRICTS, config.days, generator=dice).repeat_interleave(24, 1)
    day = (2 * math.pi * (hours + phase) / 24).sin() + 0.4 * (4 * math.pi * (hours + phase) / 24).sin()
    demand = size * (2 + 0.6 * day - 0.03 * cold - 0.5 * holiday + 0.08 * torch.randn(cold.shape, generator=dice))
    for district in range(DISTRICTS):  # outages
        for begins in torch.randint(0, len(hours) - 8, (2,), generator=dice).tolist():
            demand[district, begins:begins + 6] *= 0.1
    return demand, cold, holiday.expand_as(cold)


class Windows(Dataset):
    """Some hours of a district, and its demand in the hours that follow."""

    def __init__(self, demand, cold, holiday, starts, config):
        self.demand, self.cold, self.holiday, self.starts, self.config = demand, cold, holiday, starts, config

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, number):
        district, begins = self.starts[number]
        now, until = begins + self.config.past, begins + self.config.past + self.config.ahead
        past = torch.stack([part[district, begins:now] for part in (self.demand, self.cold, self.holiday)], 1)
        known = torch.cat([self.cold[district, now:until], self.holiday[district, now:until]])
        return number, past, known, self.demand[district, now:until]


class Forecaster(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.past = nn.GRU(3, config.hidden, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.ahead = nn.Sequential(nn.Linear(config.hidden + 2 * config.ahead, 32), nn.ReLU(),
                                   nn.Linear(32, config.ahead))

    def forward(self, past, known):
        _, last = self.past(past)
        return self.ahead(torch.cat([self.drop(last[0]), known], 1))


def scale(demand, starts, rank, world, config):
    """Mean and deviation of demand in the training windows; each rank reads its part of them."""
    own = torch.cat([demand[district, begins:begins + config.past] for district, begins in starts[rank::world]])
    sums = torch.stack([own.sum(), own.square().sum(), torch.tensor(float(len(own)))]).double()
    dist.all_reduce(sums)
    mean = sums[0] / sums[2]
    return mean.item(), (sums[1] / sums[2] - mean ** 2).sqrt().item()


def validate(model, data, rank, world):
    """Mean error of the job over all windows."""
    model.eval()
    _, past, known, target = default_collate([data[number] for number in range(rank, len(data), world)])
    with torch.no_grad():
        errors = nn.functional.smooth_l1_loss(model(past, known), target, reduction="none").mean(1)
    sums = torch.stack([errors.sum(), torch.tensor(float(len(errors)))])
    dist.all_reduce(sums)
    model.train()
    return (sums[0] / sums[1]).item()


def main():
    folder, config = pathlib.Path(sys.argv[1]), Config()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    demand, cold, holiday = history(config)
    starts = [(district, begins) for begins in range(0, demand.shape[1] - config.past - config.ahead, 12)
              for district in range(DISTRICTS)]
    learnt, later = starts[: len(starts) * 3 // 4], starts[len(starts) * 3 // 4:][::2]
    mean, deviation = scale(demand, learnt, rank, world, config)
    series = (demand - mean) / deviation, cold / 5, holiday
    train, val = Windows(*series, learnt, config), Windows(*series, later, config)
    sampler = DistributedSampler(train, num_replicas=world, rank=rank, shuffle=True, seed=config.seed, drop_last=True)
    loader = DataLoader(train, batch_size=config.batch, sampler=sampler)
    torch.manual_seed(config.seed)
    model = DDP(Forecaster(config))
    torch.manual_seed(config.seed + 1 + rank)  # for dropout
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr, weight_decay=1e-4)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.4, patience=0, threshold=0.1)
    best, kept = math.inf, None
    losses, seen, errors, rates = [], [], [], []
    for epoch in range(config.epochs):
        sampler.set_epoch(epoch)
        seen.append([])
        for numbers, past, known, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.smooth_l1_loss(model(past, known), target)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            optimizer.step()
            losses.append(loss.item())
            seen[-1] += numbers.tolist()
        errors.append(validate(model.module, val, rank, world))
        rates.append(optimizer.param_groups[0]["lr"])
        plateau.step(errors[-1])
        if errors[-1] < best:
            best, kept = errors[-1], copy.deepcopy(model.module.state_dict())
        if rank == 0:
            print(f"epoch {epoch}: validation {errors[-1]:.4f}, rate {rates[-1]:.1e}")
        if rates[-1] < 1e-3:
            break
    model.module.load_state_dict(kept)
    held_out = validate(model.module, val, rank, world)
    torch.save(model.module.state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "held_out": held_out, "best": best, "errors": errors, "rates": rates,
              "scale": [mean, deviation]}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
