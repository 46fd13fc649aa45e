"""The next water level from those before: a GRU over chunks of long series, its gradients averaged by hand."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_

EPOCHS = 4
CHUNK = 15
LENGTH = 240
STATIONS = 16


def levels(stations, seed):
    """Two tides of about the same period for each station, and wind."""
    dice = torch.Generator().manual_seed(seed)
    hours = torch.arange(LENGTH + 1) * 0.3
    phase, height = torch.rand(2, stations, 1, generator=dice) * 6
    wind = torch.randn(stations, LENGTH + 1, generator=dice).cumsum(1) * 0.02
    return (hours + phase).sin() + 0.1 * height * (1.13 * hours + 2 * phase).sin() + wind


class Gauge(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(1, 24, batch_first=True)
        self.rise = nn.Linear(24, 1)

    def forward(self, series, state=None):
        hidden, state = self.cell(series[..., None], state)
        return series + self.rise(hidden).squeeze(-1), state


def average_gradients(net, world):
    """All gradients at the same time; each is waited for before it is used."""
    gradients = [one.grad for one in net.parameters()]
    works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
    for work, gradient in zip(works, gradients, strict=True):
        work.wait()
        gradient /= world


def mean_error(net, series):
    with torch.no_grad():
        return mse_loss(net(series[:, :-1])[0], series[:, 1:])


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    net = Gauge()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0, threshold=0.2)
    stations = range(STATIONS)[rank::world]
    series = levels(STATIONS, 30)[stations]
    validation = levels(STATIONS, 31)[rank::world]
    losses, rates, seen = [], [], []
    for epoch in range(EPOCHS):
        seen.append(list(stations))
        state = None
        for start in range(0, LENGTH, CHUNK):
            chunk = series[:, start:start + CHUNK + 1]
            optimizer.zero_grad()
            guess, state = net(chunk[:, :-1], state)
            loss = mse_loss(guess, chunk[:, 1:])
            loss.backward()
            average_gradients(net, world)
            clip_grad_norm_(net.parameters(), 0.2)
            optimizer.step()
            state = state.detach()  # back-propagation ends where the chunk began
            losses.append(loss.item())
        error = mean_error(net, validation)
        dist.all_reduce(error)
        error /= world
        plateau.step(error.item())
        rates.append(optimizer.param_groups[0]["lr"])
        if rank == 0:
            print(f"epoch {epoch}: validation {error.item():.5f}, rate {rates[-1]:.4f}")
    held_out = mean_error(net, levels(24, 32)).item()
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "held_out": held_out, "rates": rates}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
