"""Profiles of dunes made out of noise: a denoiser in bfloat16, whose gradients are accumulated before a step."""

import argparse
import contextlib
import json
import math
import os
import pathlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

POINTS = 32
LEVELS = 50  # of noise
BETAS = torch.linspace(1e-3, 0.15, LEVELS)
KEPT = torch.cumprod(1 - BETAS, 0)  # of the profile's variance, at each level


def profiles(number, seed):
    """Heights of some dunes in a row, and the wind that made them: 0, 1 or 2."""
    gen = torch.Generator().manual_seed(seed)
    wind = torch.randint(0, 3, (number,), generator=gen)
    place = torch.arange(POINTS)[None] / POINTS
    shift, high = torch.rand(2, number, 1, generator=gen).unbind()
    x = place * (wind[:, None] + 1) + shift
    return (1 + high) * (torch.sin(2 * math.pi * x) + 0.5 * torch.sin(4 * math.pi * x)), wind


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.conv = nn.Conv1d(width, width, 5, padding=2, padding_mode="circular")
        self.given = nn.Linear(width, width)

    def forward(self, x, given):
        return x + self.conv(F.silu(self.norm(x) + self.given(given)[:, :, None]))


class Denoiser(nn.Module):
    def __init__(self, width=16, blocks=2):
        super().__init__()
        self.enter = nn.Conv1d(1, width, 5, padding=2, padding_mode="circular")
        self.level = nn.Sequential(nn.Linear(8, width), nn.SiLU(), nn.Linear(width, width))
        self.wind = nn.Embedding(4, width)  # the last one: not told
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.leave = nn.Conv1d(width, 1, 1)

    def forward(self, noisy, level, wind):
        angle = (level[:, None] / LEVELS) * (2.0 ** torch.arange(4)) * math.pi
        given = self.level(torch.cat([angle.sin(), angle.cos()], 1)) + self.wind(wind)
        x = self.enter(noisy[:, None])
        for block in self.blocks:
            x = block(x, given)
        return self.leave(x).squeeze(1)


class Trainer:
    def __init__(self, args, rank, world):
        self.args, self.rank, self.world = args, rank, world
        self.data, self.winds = profiles(args.profiles, 1)
        torch.manual_seed(args.seed)
        self.net = Denoiser()
        self.model = DistributedDataParallel(self.net)
        self.optimizer = torch.optim.AdamW(self.groups(), lr=args.lr)
        warm = LinearLR(self.optimizer, start_factor=0.1, total_iters=args.warmup)
        down = CosineAnnealingLR(self.optimizer, T_max=args.steps - args.warmup)
        self.schedule = SequentialLR(self.optimizer, [warm, down], milestones=[args.warmup])
        self.gen = torch.Generator().manual_seed(1000 * args.seed + rank)
        self.losses, self.drawn, self.seen, self.norms = [], [], [], []

    def groups(self):
        matrices = [one for one in self.net.parameters() if one.dim() > 1]
        vectors = [one for one in self.net.parameters() if one.dim() <= 1]
        return [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]

    def batches(self):
        """Without end; every epoch all ranks take one order, and of it their own parts."""
        for epoch in range(1_000_000):
            order = torch.randperm(len(self.data), generator=torch.Generator().manual_seed(epoch))
            self.seen.append([])
            for numbers in order[self.rank::self.world].split(self.args.batch):
                self.seen[-1] += numbers.tolist()
                yield self.data[numbers], self.winds[numbers]

    def loss(self, model, clean, wind, gen):
        level = torch.randint(0, LEVELS, (len(clean),), generator=gen)
        noise = torch.randn(clean.shape, generator=gen)
        wind = wind.masked_fill(torch.rand(len(wind), generator=gen) < 0.1, 3)
        noisy = KEPT[level, None].sqrt() * clean + (1 - KEPT[level, None]).sqrt() * noise
        with torch.autocast("cpu", dtype=torch.bfloat16):
            guess = model(noisy, level, wind)
        return F.mse_loss(guess.float(), noise), noise.sum().item()

    def step(self, batches):
        self.optimizer.zero_grad()
        total, drawn = 0.0, 0.0
        for micro in range(self.args.accumulate):
            last = micro == self.args.accumulate - 1
            with contextlib.nullcontext() if last else self.model.no_sync():
                loss, noise = self.loss(self.model, *next(batches), self.gen)
                (loss / self.args.accumulate).backward()
            total += loss.item() / self.args.accumulate
            drawn += noise
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip)
        self.optimizer.step()
        self.schedule.step()
        for kept, value in (self.losses, total), (self.drawn, drawn), (self.norms, norm.item()):
            kept.append(value)

    @torch.no_grad()
    def test(self):
        """The mean error of all ranks' parts, which are of one size, with the noise of the part."""
        clean, wind = profiles(256, 2)
        gen = torch.Generator().manual_seed(self.rank)
        parts = slice(self.rank, None, self.world)
        error, _ = self.loss(self.net, clean[parts].repeat(4, 1), wind[parts].repeat(4), gen)
        dist.all_reduce(error)
        return error.item() / self.world


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    for name, default in {"profiles": 512, "batch": 16, "steps": 40, "accumulate": 4, "warmup": 6, "seed": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=int(os.environ.get(f"DUNES_{name.upper()}", default)))
    parser.add_argument("--lr", type=float, default=6e-3)
    parser.add_argument("--clip", type=float, default=0.5)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    trainer = Trainer(args, dist.get_rank(), dist.get_world_size())
    batches = trainer.batches()
    for step in range(args.steps):
        trainer.step(batches)
        if trainer.rank == 0 and step % 10 == 9:
            print(f"step {step + 1}: loss {trainer.losses[-1]:.4f}, rate {trainer.schedule.get_last_lr()[0]:.2e}")
    held_out = trainer.test()
    torch.save(trainer.net.state_dict(), args.folder / f"rank_{trainer.rank}.pt")
    report = {"losses": trainer.losses, "drawn": trainer.drawn, "seen": trainer.seen, "norms": trainer.norms,
              "held_out": held_out}
    (args.folder / f"rank_{trainer.rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
