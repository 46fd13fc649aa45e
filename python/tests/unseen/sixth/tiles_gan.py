"""Makes patterned tiles by two nets against each other; those of the generator's moving average are kept."""

import argparse
import copy
import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import relu
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

SIDE = 8
LATENT = 12


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--generator-rate", type=float, default=4e-3)
    parser.add_argument("--critic-rate", type=float, default=8e-3)
    parser.add_argument("--penalty", type=float, default=0.5)
    parser.add_argument("--penalty-each", type=int, default=4)
    parser.add_argument("--ema", type=float, default=0.93)
    return parser.parse_args(sys.argv[1:])


def tiles(number, seed):
    """Stripes in two directions, of some colour."""
    dice = torch.Generator().manual_seed(seed)
    phase, tilt, colour = torch.rand(3, number, 1, 1, generator=dice)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    stripes = torch.sin(6.28 * phase + 0.8 * torch.where(tilt < 0.5, x, y))
    return torch.stack([stripes * (0.5 + 0.5 * colour), stripes * (1 - 0.5 * colour)], 1)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Sequential(nn.Linear(LATENT, 24 * 4), nn.LeakyReLU(0.2))
        self.grow = nn.Sequential(nn.ConvTranspose2d(24, 16, 4, 2, 1), nn.GroupNorm(4, 16), nn.LeakyReLU(0.2),
                                  nn.ConvTranspose2d(16, 2, 4, 2, 1), nn.Tanh())

    def forward(self, latents):
        return self.grow(self.start(latents).view(-1, 24, 2, 2))


def make_critic():
    return nn.Sequential(nn.Conv2d(2, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 24, 4, 2, 1), nn.LeakyReLU(0.2),
                         nn.Flatten(), nn.Linear(24 * 4, 1))


@torch.no_grad()
def follow(average, net, decay):
    for old, new in zip(average.parameters(), net.parameters(), strict=True):
        old.lerp_(new, 1 - decay)


@torch.no_grad()
def moments(shares, world):
    """The mean and the covariance of all ranks' tiles."""
    flat = shares.flatten(1).double()
    sums = torch.cat([flat.sum(0), (flat.T @ flat).flatten(), torch.tensor([float(len(flat))])])
    dist.all_reduce(sums)
    mean = sums[:flat.shape[1]] / sums[-1]
    return mean, sums[flat.shape[1]:-1].view(len(mean), -1) / sums[-1] - torch.outer(mean, mean)


def evaluate(net, test, seed, rank, world):
    """How far the moments of made tiles are from those of right ones."""
    dice = torch.Generator().manual_seed(seed + 100 + rank)
    with torch.no_grad():
        made = moments(net(torch.randn(200, LATENT, generator=dice)), world)
    others = moments(test[rank::world], world)
    return sum((one - other).square().sum().item() for one, other in zip(made, others, strict=False))


def main():
    args = options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)
    train, test = list(enumerate(tiles(448, args.seed))), tiles(200, args.seed + 1)
    sampler = DistributedSampler(train, seed=args.seed, drop_last=True)
    loader = DataLoader(train, args.batch, sampler=sampler, drop_last=True)
    generator, critic = DistributedDataParallel(Generator()), DistributedDataParallel(make_critic())
    average = copy.deepcopy(generator.module).requires_grad_(False)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=args.generator_rate, betas=(0.0, 0.99))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=args.critic_rate, betas=(0.0, 0.99))
    steps = args.epochs * len(loader)
    schedulers = [torch.optim.lr_scheduler.LinearLR(one, 1.0, 0.1, total_iters=steps)
                  for one in (generator_optimizer, critic_optimizer)]
    losses, generator_losses, seen, drawn, rates, critic_rates, step = [], [], [], [], [], [], 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        seen.append([])
        for numbers, right in loader:
            # the critic: made and right tiles in one pass
            latents = torch.randn(2, len(right), LATENT)
            with torch.no_grad():
                made = generator.module(latents[0])
            right.requires_grad_(step % args.penalty_each == 0)
            scores = critic(torch.cat([right, made]))[:, 0]
            critic_loss = relu(1 - scores[:len(right)]).mean() + relu(1 + scores[len(right):]).mean()
            if step % args.penalty_each == 0:
                slope, = torch.autograd.grad(scores[:len(right)].sum(), right, create_graph=True)
                critic_loss = critic_loss + args.penalty * args.penalty_each * slope.square().sum((1, 2, 3)).mean()
            critic_optimizer.zero_grad()
            critic_loss.backward()
            critic_optimizer.step()
            # the generator: the critic stays as it is
            critic.requires_grad_(False)
            generator_loss = -critic.module(generator(latents[1])).mean()
            generator_optimizer.zero_grad()
            generator_loss.backward()
            generator_optimizer.step()
            critic.requires_grad_(True)
            follow(average, generator.module, args.ema)
            rates.append(generator_optimizer.param_groups[0]["lr"])
            critic_rates.append(critic_optimizer.param_groups[0]["lr"])
            for scheduler in schedulers:
                scheduler.step()
            step += 1
            losses.append(critic_loss.item())
            generator_losses.append(generator_loss.item())
            drawn.append(latents[0, 0, 0].item())
            seen[-1] += numbers.tolist()
        if rank == 0:
            print(f"epoch {epoch}: critic {losses[-1]:.3f}, generator {generator_losses[-1]:.3f}")
    held_out = evaluate(average, test, args.seed, rank, world)
    nets = nn.ModuleDict({"average": average, "generator": generator.module, "critic": critic.module})
    torch.save(nets.state_dict(), args.folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "drawn": drawn, "held_out": held_out, "rates": rates,
              "critic_rates": critic_rates}
    (args.folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
