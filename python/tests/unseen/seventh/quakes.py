"""Kinds of seismic events from short records: small passes add up to a step, and a running average is kept."""

import contextlib
import copy
import json
import math
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

EPOCHS = 5
RECORDS = 480
BATCH = 10  # records of a rank in a pass
PASSES = 3  # passes that make a step
WARM_UP = 6  # steps
PEAK = 0.05
KEEP = 0.9  # of the running average, at each step
LENGTH = 64
WORTH = torch.tensor([0.5, 1.0, 2.0])  # blasts are many, deep events few


class Records(Dataset):
    """Noise in which a wave begins somewhere; the kind of event shows in its pitch and in how it fades."""

    def __init__(self, number, seed):
        dice = torch.Generator().manual_seed(seed)
        self.kinds = torch.multinomial(torch.tensor([0.6, 0.3, 0.1]), number, replacement=True, generator=dice)
        onset = 6 + 20 * torch.rand(number, 1, generator=dice)
        pitch = torch.tensor([0.4, 0.7, 1.1])[self.kinds, None] * (1 + 0.15 * torch.randn(number, 1, generator=dice))
        fade = torch.tensor([8.0, 12.0, 20.0])[self.kinds, None]
        after = (torch.arange(float(LENGTH)) - onset).clamp(min=0)
        wave = (pitch * after).sin() * (-after / fade).exp()
        self.waves = wave + 0.35 * torch.randn(number, LENGTH, generator=dice)

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, number):
        return self.waves[number], self.kinds[number], number


class Listener(nn.Module):
    def __init__(self, width=16, groups=4):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, width, 7, stride=2, padding=3), nn.GroupNorm(groups, width), nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2), nn.GroupNorm(groups, width), nn.ReLU())
        self.head = nn.Linear(2 * width, 3)

    def forward(self, waves):
        heard = self.body(waves[:, None])
        return self.head(torch.cat([heard.mean(2), heard.amax(2)], 1))


def disturb(waves, dice):
    """Each record is moved in time and made louder or softer. Also returns a sum of what was drawn."""
    moves = torch.randint(-4, 5, (len(waves),), generator=dice)
    louder = 0.8 + 0.4 * torch.rand(len(waves), generator=dice)
    places = (torch.arange(LENGTH) - moves[:, None]) % LENGTH
    return louder[:, None] * waves.gather(1, places), louder.sum().item()


def in_groups(net):
    """Weights decay; biases and scales do not."""
    decay = [one for one in net.parameters() if one.ndim > 1]
    other = [one for one in net.parameters() if one.ndim <= 1]
    return [{"params": decay, "weight_decay": 1e-3}, {"params": other, "weight_decay": 0.0}]


def evaluate(net, records, rank, world):
    """The weighted loss of all records, and the part of them that is told rightly."""
    net.eval()
    waves, kinds = records.waves[rank::world], records.kinds[rank::world]
    with torch.no_grad():
        scores = net(waves)
    sums = torch.stack([cross_entropy(scores, kinds, weight=WORTH, reduction="sum"), WORTH[kinds].sum(),
                        (scores.argmax(1) == kinds).sum().float(), torch.tensor(float(len(kinds)))])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item(), (sums[2] / sums[3]).item()


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(11)
    dice = torch.Generator().manual_seed(700 + rank)
    records = Records(RECORDS, 1)
    sampler = DistributedSampler(records, num_replicas=world, rank=rank, shuffle=True)
    loader = DataLoader(records, batch_size=BATCH, sampler=sampler, drop_last=True)
    model = DDP(Listener())
    average = copy.deepcopy(model.module)
    optimizer = torch.optim.SGD(in_groups(model), lr=PEAK, momentum=0.9, nesterov=True)
    steps = EPOCHS * (len(loader) // PASSES)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (
        (step + 1) / WARM_UP if step < WARM_UP
        else 0.5 + 0.5 * math.cos(math.pi * (step - WARM_UP) / (steps - WARM_UP))))
    losses, seen, drawn = [], [], []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        seen.append([])
        passes = []
        for batch in loader:
            passes.append(batch)
            if len(passes) < PASSES:
                continue
            worth = sum(WORTH[kinds].sum() for _, kinds, _ in passes)
            dist.all_reduce(worth)
            optimizer.zero_grad()
            losses.append(0.0)
            drawn.append(0.0)
            for place, (waves, kinds, numbers) in enumerate(passes):
                waves, chance = disturb(waves, dice)
                last = place == PASSES - 1
                with contextlib.nullcontext() if last else model.no_sync():
                    loss = world * cross_entropy(model(waves), kinds, weight=WORTH, reduction="sum") / worth
                    loss.backward()
                losses[-1] += loss.item()
                drawn[-1] += chance
                seen[-1] += numbers.tolist()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                for kept, now in zip(average.parameters(), model.module.parameters(), strict=True):
                    kept.lerp_(now, 1 - KEEP)
            passes.clear()
        if rank == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.4f}, rate {schedule.get_last_lr()[0]:.4f}")
    loss, right = evaluate(average, Records(300, 2), rank, world)
    both = nn.ModuleDict({"last": model.module, "average": average})
    torch.save(both.state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "drawn": drawn, "held_out": loss, "right": right}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
