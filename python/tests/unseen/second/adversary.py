"""A generator and a critic of points on a spiral: two models in DDP, and an Adam for each."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import softplus
from torch.nn.parallel import DistributedDataParallel

STEPS = 80
BATCH = 64
NOISE = 6


def spiral(number, dice):
    turn = torch.rand(number, generator=dice).sqrt() * 5
    points = torch.stack([turn.cos(), turn.sin()], 1) * (turn / 5)[:, None]
    return points + 0.02 * torch.randn(number, 2, generator=dice)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(NOISE, 48)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 48)) for _ in range(2))
        self.leave = nn.Linear(48, 2)

    def forward(self, noise):
        hidden = self.enter(noise)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.leave(hidden)


def make_critic():
    return nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))


def sliced_distance(points, others, dice):
    """The mean distance of both clouds in random directions."""
    directions = nn.functional.normalize(torch.randn(2, 32, generator=dice), dim=0)
    return ((points @ directions).sort(0).values - (others @ directions).sort(0).values).abs().mean().item()


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    generator = DistributedDataParallel(Generator())
    critic = DistributedDataParallel(make_critic())
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.9))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=4e-3, betas=(0.5, 0.9))
    dice = torch.Generator().manual_seed(100 + rank)
    losses = []
    for step in range(STEPS):
        real = spiral(BATCH, dice)
        noise = torch.randn(BATCH, NOISE, generator=dice)
        with torch.no_grad():
            fake = generator(noise)
        critic_optimizer.zero_grad()
        scores = critic(torch.cat([real, fake]))
        critic_loss = softplus(-scores[:BATCH]).mean() + softplus(scores[BATCH:]).mean()
        critic_loss.backward()
        critic_optimizer.step()
        critic.requires_grad_(False)
        generator_optimizer.zero_grad()
        generator_loss = softplus(-critic.module(generator(noise))).mean()
        generator_loss.backward()
        generator_optimizer.step()
        critic.requires_grad_(True)
        losses.append(critic_loss.item())
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: critic {critic_loss.item():.4f}, generator {generator_loss.item():.4f}")
    test_dice = torch.Generator().manual_seed(7)
    with torch.no_grad():
        drawn = generator.module(torch.randn(512, NOISE, generator=test_dice))
    held_out = sliced_distance(drawn, spiral(512, test_dice), test_dice)
    weights = {f"{name}.{key}": value for name, model in (("generator", generator), ("critic", critic))
               for key, value in model.module.state_dict().items()}
    torch.save(weights, folder / f"rank_{rank}.pt")
    (folder / f"rank_{rank}.json").write_text(json.dumps({"losses": losses, "held_out": held_out}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
