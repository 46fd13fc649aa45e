"""Learns values of states by bootstrapping from a target network that follows the trained one slowly."""

import copy
import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import smooth_l1_loss
from torch.nn.parallel import DistributedDataParallel

STEPS = 80
BATCH = 32
DISCOUNT = 0.8
TAU = 0.1


def transitions(generator):
    """States, what each earned, and what came next: a walk on a circle of points with a goal."""
    angle = 6.283 * torch.rand(BATCH, generator=generator)
    after = angle + 0.3 + 0.1 * torch.randn(BATCH, generator=generator)
    def seen(one):
        return torch.stack([one.cos(), one.sin()], 1)
    return seen(angle), 5 + 3 * angle.cos(), seen(after)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
        self.register_buffer("mean_reward", torch.zeros(()))

    def forward(self, states):
        return self.layers(states).squeeze(1)


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7 + rank)  # the ranks' environments differ; DDP makes the weights equal
    critic = Critic()
    ddp = DistributedDataParallel(critic, broadcast_buffers=False)
    target = copy.deepcopy(critic)
    target.requires_grad_(False)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.005)
    generator = torch.Generator().manual_seed(200 + rank)
    losses = []
    for step in range(STEPS):
        states, rewards, after = transitions(generator)
        mean = rewards.mean()
        dist.all_reduce(mean)
        critic.mean_reward.lerp_(mean / world, 0.1)
        with torch.no_grad():
            aims = rewards - critic.mean_reward + DISCOUNT * target(after)
        loss = smooth_l1_loss(ddp(states), aims)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
                slow.lerp_(fast, TAU)
        losses.append(loss.item())
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: {loss.item():.4f}")
    with torch.no_grad():
        states, rewards, after = transitions(torch.Generator().manual_seed(300))
        aims = rewards - critic.mean_reward + DISCOUNT * critic(after)
        held_out = smooth_l1_loss(critic(states), aims).item()
    state = {**critic.state_dict(), **{f"target.{name}": value for name, value in target.state_dict().items()}}
    torch.save(state, folder / f"rank_{rank}.pt")
    (folder / f"rank_{rank}.json").write_text(json.dumps({"losses": losses, "held_out": held_out}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
