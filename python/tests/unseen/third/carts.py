"""Carts learn to stop in the middle by proximal policy optimisation; divergence sets the rate and ends a round."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

ROUNDS = 8
CARTS = 8  # a rank
HORIZON = 24
PASSES = 4
BATCH = 48
DISCOUNT = 0.9
FAR = 0.012  # a divergence that ends the round


def start(seeds, level):
    """Where each cart begins, and how fast; a higher level is harder. Every cart has its own dice."""
    dice = [torch.rand(2, generator=one) for one in seeds]
    return (torch.stack(dice) * 2 - 1) * torch.tensor([0.5 + 0.25 * level, 0.3])


def move(carts, pushes):
    place, speed = carts.unbind(1)
    speed = 0.8 * speed + 0.2 * (2 * pushes - 1)
    return torch.stack([place + 0.15 * speed, speed], 1)


def costs(carts):
    return carts[:, 0] ** 2 + 0.1 * carts[:, 1] ** 2


def mean_of_job(value, world):
    total = value.detach().clone()
    dist.all_reduce(total)
    return total / world


def play(actor, critic, carts, dice):
    """Carts, pushes, their log-probabilities, and the return of each push."""
    seen, pushes, chances, rewards = [], [], [], []
    with torch.no_grad():
        for _ in range(HORIZON):
            choice = actor(carts)
            push = torch.multinomial(choice.softmax(1), 1, generator=dice).squeeze(1)
            seen.append(carts)
            pushes.append(push)
            chances.append(Categorical(logits=choice).log_prob(push))
            carts = move(carts, push)
            rewards.append(-costs(carts))
        returns = [critic(carts).squeeze(1)]
        for reward in reversed(rewards):
            returns.insert(0, reward + DISCOUNT * returns[0])
    return torch.cat(seen), torch.cat(pushes), torch.cat(chances), torch.cat(returns[:-1]), torch.stack(rewards).mean()


def net(outputs):
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, outputs))


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(30 + rank)
    actor, critic = DistributedDataParallel(net(2)), DistributedDataParallel(net(1))
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-3)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
    numbers = [1000 + rank * CARTS + cart for cart in range(CARTS)]
    seeds = [torch.Generator().manual_seed(number) for number in numbers]
    dice = torch.Generator().manual_seed(40 + rank)
    level = torch.zeros(())
    losses, seen, levels, passes, rates = [], [], [], [], []
    for turn in range(ROUNDS):
        carts, pushes, chances, returns, reward = play(actor.module, critic.module, start(seeds, level), dice)
        level += mean_of_job(reward, world) > -0.15
        passes.append(0)
        for _ in range(PASSES):
            apart = []
            for chosen in torch.randperm(len(carts), generator=dice).split(BATCH):
                actor_optimizer.zero_grad()
                critic_optimizer.zero_grad()
                values = critic(carts[chosen]).squeeze(1)
                gain = returns[chosen] - values.detach()
                gain = (gain - gain.mean()) / (gain.std() + 1e-6)
                choice = Categorical(logits=actor(carts[chosen]))
                log_ratio = choice.log_prob(pushes[chosen]) - chances[chosen]
                ratio = log_ratio.exp()
                actor_loss = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
                critic_loss = mse_loss(values, returns[chosen])
                (actor_loss - 0.005 * choice.entropy().mean()).backward()
                critic_loss.backward()
                clip_grad_norm_(actor.parameters(), 0.1)
                clip_grad_norm_(critic.parameters(), 0.5)
                actor_optimizer.step()
                critic_optimizer.step()
                apart.append((ratio - 1 - log_ratio).detach().mean())
                losses.append(critic_loss.item())
            passes[-1] += 1
            far = mean_of_job(torch.stack(apart).mean(), world).item()
            for group in actor_optimizer.param_groups:
                group["lr"] = min(6e-3, max(1e-3, group["lr"] * (0.8 if far > FAR / 2 else 1.1)))
            if far > FAR:
                break
        seen.append(numbers)
        levels.append(level.item())
        rates.append(actor_optimizer.param_groups[0]["lr"])
        if rank == 0:
            print(f"round {turn}: reward {reward.item():.3f}, level {level.item():.0f}, {passes[-1]} passes")
    carts, held_out = start([torch.Generator().manual_seed(one) for one in range(64)], 2), 0.0
    with torch.no_grad():
        for _ in range(HORIZON):
            carts = move(carts, actor.module(carts).argmax(1))
            held_out += costs(carts).mean().item()
    weights = {f"{name}.{key}": value for name, one in (("actor", actor), ("critic", critic))
               for key, value in one.module.state_dict().items()}
    torch.save(weights, folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "held_out": held_out, "levels": levels, "passes": passes, "rates": rates}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
