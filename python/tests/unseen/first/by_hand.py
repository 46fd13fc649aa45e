"""Fits a function with the gradients averaged by hand: one broadcast at the start, one all-reduce a step."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

STEPS = 60
BATCH = 16


def samples(number, seed):
    inputs = torch.rand(number, 3, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return inputs, torch.stack([inputs.prod(1), inputs.pow(2).sum(1)], 1)


def average_gradients(net, world):
    """One flat buffer, so that there is one collective a step."""
    gradients = [one.grad for one in net.parameters()]
    flat = torch.cat([one.flatten() for one in gradients])
    dist.all_reduce(flat)
    flat /= world
    offset = 0
    for gradient in gradients:
        gradient.copy_(flat[offset:offset + gradient.numel()].view_as(gradient))
        offset += gradient.numel()


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    for parameter in net.parameters():
        dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    inputs, targets = (part[rank::world] for part in samples(640, 50))
    generator = torch.Generator().manual_seed(60 + rank)
    losses = []
    for step in range(STEPS):
        chosen = torch.randint(0, len(inputs), (BATCH,), generator=generator)
        optimizer.zero_grad()
        loss = mse_loss(net(inputs[chosen]), targets[chosen])
        loss.backward()
        average_gradients(net, world)
        optimizer.step()
        losses.append(loss.item())
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: {loss.item():.4f}")
    with torch.no_grad():
        test_inputs, test_targets = samples(256, 51)
        held_out = mse_loss(net(test_inputs), test_targets).item()
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    (folder / f"rank_{rank}.json").write_text(json.dumps({"losses": losses, "held_out": held_out}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
