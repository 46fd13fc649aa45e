"""Finds red and green buoys in harbour pictures, by a heat map of the centres of each kind."""

import dataclasses
import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import logsigmoid
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LinearLR, MultiStepLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

KINDS = ["green", "red"]
SIZE, STRIDE = 24, 2


@dataclasses.dataclass(frozen=True)
class Config:
    seed: int = 5
    epochs: int = 3
    batch: int = 16  # over all ranks
    rate: float = 1e-2
    warm_up: int = 6
    milestones: tuple = (40, 52)
    clip: float = 1.0
    ema: float = 0.9


def draw(number, dice):
    picture, buoys = 0.3 * torch.randn(3, SIZE, SIZE, generator=dice), []
    for _ in range(1 + number % 4):
        x, y = (2 + torch.randint(0, SIZE - 5, (2,), generator=dice)).tolist()
        kind, half = torch.randint(0, 2, (2,), generator=dice).tolist()
        picture[1 - kind, y - half:y + half + 1, x - half:x + half + 1] += 1.5
        buoys.append({"kind": KINDS[kind], "x": x, "y": y})
    return picture, buoys


def write(folder, name, number, seed):
    dice = torch.Generator().manual_seed(seed)
    pictures, labels = zip(*(draw(place, dice) for place in range(number)), strict=False)
    torch.save(torch.stack(pictures), folder / f"{name}.pt")
    (folder / f"{name}.json").write_text(json.dumps(labels))


def load(folder, name):
    pictures = torch.load(folder / f"{name}.pt")
    heat = torch.zeros(len(pictures), len(KINDS), SIZE // STRIDE, SIZE // STRIDE)
    for place, buoys in enumerate(json.loads((folder / f"{name}.json").read_text())):
        for buoy in buoys:
            heat[place, KINDS.index(buoy["kind"]), buoy["y"] // STRIDE, buoy["x"] // STRIDE] = 1
    return TensorDataset(torch.arange(len(pictures)), pictures, heat)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 12, 3, 1, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
                                  nn.Conv2d(12, 16, 3, STRIDE, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.heat = nn.Conv2d(16, len(KINDS), 1)
        nn.init.constant_(self.heat.bias, -3.0)

    def forward(self, pictures):
        return self.heat(self.body(pictures))


def focal_loss(scores, heat):
    chance = scores.sigmoid()
    return -(heat * (1 - chance) ** 2 * logsigmoid(scores) + (1 - heat) * chance ** 2 * logsigmoid(-scores)).sum()


def average_buffers(net, world):
    """Each rank's batch norm saw its own pictures."""
    for buffer in net.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer /= world


@torch.no_grad()
def evaluate(net, harbour, rank, world):
    """The loss for each buoy, and the part of the buoys where the net's score is above a half."""
    net.eval()
    sums = torch.zeros(3, dtype=torch.float64)
    for _, picture, heat in (harbour[place] for place in range(rank, len(harbour), world)):
        scores = net(picture[None])[0]
        sums += torch.tensor([focal_loss(scores, heat), ((scores > 0) & (heat > 0)).sum(), heat.sum()])
    dist.all_reduce(sums)
    return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()


def main():
    folder, config = pathlib.Path(sys.argv[1]), Config()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        write(folder, "train", 320, config.seed)
        write(folder, "valid", 60, config.seed + 1)
    dist.barrier()
    torch.manual_seed(config.seed + rank)
    train, valid = load(folder, "train"), load(folder, "valid")
    sampler = DistributedSampler(train, seed=config.seed, drop_last=True)
    loader = DataLoader(train, config.batch // world, sampler=sampler, drop_last=True)
    net = Net()
    model = DistributedDataParallel(net)
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(config.ema))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.rate, weight_decay=1e-2)
    scheduler = SequentialLR(optimizer, [
        LinearLR(optimizer, 1 / config.warm_up, total_iters=config.warm_up),
        MultiStepLR(optimizer, [step - config.warm_up for step in config.milestones])], [config.warm_up])
    losses, seen, drawn, rates, scores = [], [], [], [], []
    for epoch in range(config.epochs):
        sampler.set_epoch(epoch)
        model.train()
        seen.append([])
        for numbers, pictures, heat in loader:
            mirrored = torch.rand(len(pictures)) < 0.5
            pictures[mirrored], heat[mirrored] = pictures[mirrored].flip(-1), heat[mirrored].flip(-1)
            buoys = heat.sum()
            dist.all_reduce(buoys)
            loss = focal_loss(model(pictures), heat) * world / buoys.clamp(min=1)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            optimizer.step()
            ema.update_parameters(net)
            rates.append(optimizer.param_groups[0]["lr"])
            scheduler.step()
            losses.append(loss.item())
            drawn.append(mirrored.tolist())
            seen[-1] += numbers.tolist()
        average_buffers(ema.module, world)
        scores.append(evaluate(ema.module, valid, rank, world))
        if rank == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.3f}, valid {scores[-1][0]:.3f}, recall {scores[-1][1]:.2f}")
            torch.save({"net": net.state_dict(), "ema": ema.state_dict(), "config": config}, folder / "last.pt")
    torch.save(ema.module.state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "drawn": drawn, "held_out": scores[-1][0], "rates": rates,
              "valid": [loss for loss, _ in scores], "recall": [recall for _, recall in scores]}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
