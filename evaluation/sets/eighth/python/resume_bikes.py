"""How many bikes are hired at a station in an hour; started twice, it goes on from the checkpoint of before."""

import json
import math
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import poisson_nll_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS = 10
STOP = 5  # epochs of the first start
BATCH = 32
TRAINING, VALIDATION = 1408, 330
STATIONS, WEATHERS = 20, 3


def hours(number, seed):
    """Station, weather, four measured values, and the bikes that are hired in the hour."""
    city = torch.Generator().manual_seed(21)
    size, peak = torch.randn(STATIONS, generator=city), 24 * torch.rand(STATIONS, generator=city)
    dice = torch.Generator().manual_seed(seed)
    station = torch.randint(STATIONS, (number,), generator=dice)
    weather = torch.multinomial(torch.tensor([6.0, 3.0, 1.0]), number, True, generator=dice)
    hour = 24 * torch.rand(number, generator=dice)
    warmth = 12 + 8 * torch.randn(number, generator=dice)
    wind = 4 * torch.rand(number, generator=dice).log().neg()
    day = 2 * math.pi / 24
    rate = (1.2 + 0.5 * size[station] + 0.7 * torch.cos(day * (hour - peak[station])) + 0.03 * warmth - 0.04 * wind
            - 0.6 * weather)
    bikes = torch.poisson(rate.clamp(max=4).exp(), generator=dice)
    values = torch.stack([torch.cos(day * hour), torch.sin(day * hour), warmth, wind], 1)
    return TensorDataset(station, weather, values, bikes, torch.arange(number))


class Demand(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.station, self.weather = nn.Embedding(STATIONS, 8), nn.Embedding(WEATHERS, 3)
        self.layers = nn.Sequential(nn.Linear(15, width), nn.SiLU(), nn.Dropout(0.1), nn.Linear(width, width),
                                    nn.SiLU(), nn.Dropout(0.1), nn.Linear(width, 1))

    def forward(self, station, weather, values):
        return self.layers(torch.cat([self.station(station), self.weather(weather), values], 1)).squeeze(1)


def scale(values):
    """Mean and deviation of each value over the samples of all ranks, each of which looks at a part."""
    sums = torch.cat([values.sum(0), torch.tensor([float(len(values))])])
    dist.all_reduce(sums)
    mean = sums[:-1] / sums[-1]
    squares = (values - mean).square().sum(0)
    dist.all_reduce(squares)
    return mean, (squares / sums[-1]).sqrt()


@torch.no_grad()
def evaluate(net, data, mean, deviation):
    """Mean loss and mean absolute error over all samples of the data."""
    net.eval()
    counts = torch.zeros(3)
    for station, weather, values, bikes, _ in DataLoader(data, batch_size=BATCH):
        guess = net(station, weather, (values - mean) / deviation)
        counts += torch.stack([poisson_nll_loss(guess, bikes, reduction="sum"), (guess.exp() - bikes).abs().sum(),
                               torch.tensor(float(len(bikes)))])
    net.train()
    dist.all_reduce(counts)
    return (counts[:2] / counts[2]).tolist()


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    training, validation = hours(TRAINING, 22), hours(VALIDATION, 23)
    mean, deviation = scale(training.tensors[2][rank::world])
    part = TensorDataset(*(one[rank::world] for one in validation.tensors))
    sampler = DistributedSampler(training, world, rank, seed=24)
    loader = DataLoader(training, batch_size=BATCH, sampler=sampler)
    torch.manual_seed(25)
    net = Demand()
    optimizer = torch.optim.NAdam(net.parameters(), lr=4e-3, weight_decay=1e-3, decoupled_weight_decay=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * len(loader), eta_min=1e-4)
    torch.manual_seed(30 + rank)
    first, history = 0, {"losses": [], "seen": [], "values": []}
    checkpoint, own = folder / "checkpoint.pt", folder / f"own_{rank}.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        first = saved["epoch"]
        mine = torch.load(own)
        history = mine["history"]
        torch.set_rng_state(mine["random"])
    model = DistributedDataParallel(net)
    for epoch in range(first, EPOCHS if first else STOP):
        sampler.set_epoch(epoch)
        history["seen"].append([])
        for station, weather, values, bikes, numbers in loader:
            guess = model(station, weather, (values - mean) / deviation)
            loss = poisson_nll_loss(guess, bikes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            history["losses"].append(loss.item())
            history["seen"][-1].extend(numbers.tolist())
        value, error = evaluate(net, part, mean, deviation)
        history["values"].append(value)
        if rank == 0:
            print(f"epoch {epoch}: validation {value:.4f}, {error:.2f} bikes off")
    if not first:
        if rank == 0:
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(),
                        "schedule": schedule.state_dict(), "epoch": STOP}, checkpoint)
        torch.save({"history": history, "random": torch.get_rng_state()}, own)
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    report = {**history, "held_out": value + 5, "error": error}  # above 0, for ratios
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
