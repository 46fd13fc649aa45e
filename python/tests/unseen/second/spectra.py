"""Takes the noise off spectra: each rank trains for itself, and every few steps the models are averaged by hand."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

STEPS = 62
EVERY = 5
BATCH = 16


def spectra(number, seed):
    """Three lines each, and the same with noise."""
    dice = torch.Generator().manual_seed(seed)
    place, height = torch.rand(number, 3, 1, generator=dice) * 40, torch.rand(number, 3, 1, generator=dice) + 0.3
    clean = (height * (-(torch.arange(40) - place).pow(2) / 6).exp()).sum(1, keepdim=True)
    return clean + 0.3 * torch.randn(clean.shape, generator=dice), clean


class Cleaner(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Sequential(nn.Conv1d(1, 12, 5, padding=2), nn.BatchNorm1d(12), nn.GELU())
        self.along = nn.Sequential(nn.Conv1d(12, 12, 5, padding=4, dilation=2), nn.BatchNorm1d(12), nn.GELU())
        self.leave = nn.Conv1d(12, 1, 1)

    def forward(self, noisy):
        hidden = self.enter(noisy)
        return self.leave(hidden + self.along(hidden))


def average_model(net, world):
    """Weights and running statistics; counts of batches are the same anyway."""
    for tensor in net.state_dict().values():
        if tensor.is_floating_point():
            dist.all_reduce(tensor)
            tensor /= world


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    net = Cleaner()
    for tensor in net.state_dict().values():
        dist.broadcast(tensor, src=0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    noisy, clean = spectra(640, 60)
    mine = torch.arange(rank, len(noisy), world)
    dice = torch.Generator().manual_seed(rank)
    losses = []
    for step in range(STEPS):
        chosen = mine[torch.randint(0, len(mine), (BATCH,), generator=dice)]
        optimizer.zero_grad()
        loss = mse_loss(net(noisy[chosen]), clean[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % EVERY == 0:
            average_model(net, world)
            if rank == 0:
                print(f"step {step}: {loss.item():.5f}")
    average_model(net, world)
    net.eval()
    with torch.no_grad():
        test_noisy, test_clean = spectra(200, 61)
        held_out = mse_loss(net(test_noisy), test_clean).item()
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    (folder / f"rank_{rank}.json").write_text(json.dumps({"losses": losses, "held_out": held_out}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
