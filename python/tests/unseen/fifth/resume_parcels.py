"""Hours until a parcel arrives, as three quantiles. The job's slot ends halfway; started again, it goes on."""

import json
import logging
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import OneCycleLR

log = logging.getLogger("parcels")
QUANTILES = torch.tensor([0.1, 0.5, 0.9])
CARRIERS, HUBS, NUMBERS = 4, 12, 3
FILES, PER_FILE, BATCH = 16, 40, 32
EPOCHS, SLOT = 6, 3
CLIP = 1.0


def read_file(number):
    """Parcels of a day: carrier and hub, weight and distance and hour, and how long each took."""
    g = torch.Generator().manual_seed(9000 + number)
    carrier = torch.randint(0, CARRIERS, (PER_FILE,), generator=g)
    hub = torch.randint(0, HUBS, (PER_FILE,), generator=g)
    numbers = torch.rand(PER_FILE, NUMBERS, generator=g) * torch.tensor([30.0, 800.0, 24.0])
    busy = (hub * 7 % HUBS).float() / HUBS
    hours = 6 + numbers[:, 1] / (40 + 15 * carrier) + 8 * busy * (numbers[:, 2] > 14) + 0.1 * numbers[:, 0]
    late = torch.empty(PER_FILE).exponential_(1.0, generator=g) * (1 + carrier)
    return carrier, hub, numbers, (hours + late) / 10


class RunningScale(nn.Module):
    """Scales numbers by the mean and variance of all that any rank has seen."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("total", torch.zeros(width))
        self.register_buffer("squares", torch.zeros(width))

    def update(self, numbers):
        sums = torch.cat([numbers.new_tensor([len(numbers)]), numbers.sum(0), numbers.square().sum(0)])
        dist.all_reduce(sums)
        for buffer, one in zip(self.buffers(), sums.split([1, NUMBERS, NUMBERS]), strict=True):
            buffer += one.view_as(buffer)

    def forward(self, numbers):
        mean = self.total / self.count
        return (numbers - mean) / (self.squares / self.count - mean ** 2).clamp(min=1e-6).sqrt()


class Arrival(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = RunningScale(NUMBERS)
        self.carrier = nn.Embedding(CARRIERS, 6)
        self.hub = nn.Embedding(HUBS, 6)
        self.layers = nn.Sequential(nn.Linear(12 + NUMBERS, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 24),
                                    nn.ReLU(), nn.Linear(24, len(QUANTILES)))

    def forward(self, carrier, hub, numbers):
        return self.layers(torch.cat([self.carrier(carrier), self.hub(hub), self.scale(numbers)], 1))


def pinball(guess, hours):
    over = hours[:, None] - guess
    return torch.maximum(QUANTILES * over, (QUANTILES - 1) * over).mean(1)


def validate(model, columns, rank, world):
    model.eval()
    *inputs, hours = (column[rank::world] for column in columns)
    with torch.no_grad():
        error = pinball(model(*inputs), hours)
    model.train()
    sums = torch.stack([error.sum(), torch.tensor(float(len(error)))])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def main(folder):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    files = list(range(FILES))[rank::world]
    columns = [torch.cat(parts) for parts in zip(*map(read_file, files), strict=True)]
    held_out = [torch.cat(parts) for parts in zip(*map(read_file, (101, 102, 103)), strict=True)]
    torch.manual_seed(21)
    net = Arrival()
    torch.manual_seed(22 + rank)
    hard = torch.ones(len(columns[0]))  # of each parcel, how wrong the last guess was
    first, best = 0, float("inf")
    shared, own = folder / "checkpoint.pt", folder / f"own_{rank}.pt"
    resumed = shared.exists()
    if resumed:
        state = torch.load(shared)
        net.load_state_dict(state["net"])
    model = DistributedDataParallel(net, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    steps = len(hard) // BATCH
    schedule = OneCycleLR(optimizer, max_lr=0.15, total_steps=EPOCHS * steps, pct_start=0.3)
    if resumed:
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        first, best = state["epoch"], state["best"]
        mine = torch.load(own)
        torch.set_rng_state(mine["dice"])
        hard = mine["hard"]
        log.info("goes on with epoch %d, best %.4f", first, best)
    losses, drawn, seen, errors = [], [], [], []
    for epoch in range(first, EPOCHS if resumed else SLOT):
        seen.append([])
        order = torch.randperm(len(hard), generator=torch.Generator().manual_seed(epoch * world + rank))
        for chosen in order.split(BATCH):
            carrier, hub, numbers, hours = (column[chosen] for column in columns)
            model.module.scale.update(numbers)
            noise = torch.randn(numbers.shape)
            each = pinball(model(carrier, hub, numbers + noise * torch.tensor([1.0, 20.0, 0.5])), hours)
            weight = hard[chosen].sqrt()
            total = weight.sum()
            dist.all_reduce(total)
            loss = world * (weight * each).sum() / total
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            hard[chosen] = 0.5 * hard[chosen] + 0.5 * (each.detach() / each.detach().mean())
            losses.append(loss.item())
            drawn.append(noise.sum().item())
            seen[-1] += [files[number // PER_FILE] * PER_FILE + number % PER_FILE for number in chosen.tolist()]
        errors.append(validate(model.module, held_out, rank, world))
        best = min(best, errors[-1])
        log.info("epoch %d: held out %.4f, rate %.3f", epoch, errors[-1], schedule.get_last_lr()[0])
        torch.save({"dice": torch.get_rng_state(), "hard": hard}, own)
        if rank == 0:
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "best": best,
                        "schedule": schedule.state_dict(), "epoch": epoch + 1}, shared)
        dist.barrier()
    if resumed:
        torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
        report = {"losses": losses, "drawn": drawn, "seen": seen, "held_out": errors[-1], "errors": errors}
        (folder / f"rank_{rank}.json").write_text(json.dumps(report | {"best": best}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
