"""When patients of a hospital come back: the chance for each month, from a table. Gradients are averaged by hand."""

import copy
import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, Sampler, TensorDataset

SETTINGS = {"seed": 41, "epochs": 9, "batch": 16, "rate": 1.5e-2, "decay": 1e-3, "clip": 0.5, "patience": 4}
ROWS, VALID, MONTHS, FIGURES = 240, 120, 6, 5
WARDS = ["burns", "cardiac", "ear", "eye", "general", "nerve", "skin", "spine"]


def table(number, seed):
    """Figures, ward, the month of the return or of the last sight, and whether it was a return."""
    dice = torch.Generator().manual_seed(seed)
    figures = torch.randn(number, FIGURES, generator=dice) * torch.tensor([1.0, 12, 0.1, 300, 4]) + 7
    ward = (len(WARDS) * torch.rand(number, generator=dice) ** 1.5).long()
    risk = -1.8 + 0.08 * (figures[:, 1] - 7) + 0.25 * (figures[:, 4] - 7) + 0.5 * (ward % 3 - 1)
    comes = torch.rand(number, MONTHS, generator=dice) < risk[:, None].sigmoid()
    month = torch.where(comes.any(1), comes.float().argmax(1), MONTHS - 1)
    sight = torch.randint(1, MONTHS, (number,), generator=dice)
    event = comes.any(1) & (month <= sight)
    return figures, [WARDS[place] for place in ward.tolist()], torch.where(event, month, sight), event.float()


class Shares(Sampler):
    """The rank's part of the rows, shuffled over all ranks in each epoch."""

    def __init__(self, rows, rank, world):
        self.rows, self.rank, self.world, self.epoch = rows, rank, world, 0

    def __len__(self):
        return self.rows // self.world

    def __iter__(self):
        dice = torch.Generator().manual_seed(SETTINGS["seed"] + self.epoch)
        return iter(torch.randperm(self.rows, generator=dice)[self.rank::self.world].tolist())


class Net(nn.Module):
    def __init__(self, mean, spread):
        super().__init__()
        self.mean, self.spread = nn.Buffer(mean), nn.Buffer(spread)
        self.wards = nn.Embedding(len(WARDS), 4)
        self.body = nn.Sequential(nn.Linear(FIGURES + 4, 32), nn.LayerNorm(32), nn.ReLU(), nn.Dropout(0.1),
                                  nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, MONTHS))

    def forward(self, figures, wards):
        return self.body(torch.cat([(figures - self.mean) / self.spread, self.wards(wards)], 1))


def statistics(figures):
    """Means and standard deviations over the rows of all ranks."""
    sums = torch.stack([torch.ones_like(figures), figures, figures.square()]).sum(1)
    dist.all_reduce(sums)
    mean = sums[1] / sums[0]
    return mean, (sums[2] / sums[0] - mean.square()).sqrt()


def summed_loss(scores, month, event, weight):
    """Over the months in which a patient was seen; a return counts as many times as weight says."""
    months = torch.arange(MONTHS)
    returns = (months == month[:, None]) * event[:, None]
    losses = binary_cross_entropy_with_logits(scores, returns, pos_weight=weight, reduction="none")
    return (losses * (months <= month[:, None])).sum()


def average_gradients(net, world):
    """In one message."""
    gradients = [parameter.grad for parameter in net.parameters()]
    flat = _flatten_dense_tensors(gradients)
    dist.all_reduce(flat)
    flat /= world
    for gradient, averaged in zip(gradients, _unflatten_dense_tensors(flat, gradients), strict=True):
        gradient.copy_(averaged)


@torch.no_grad()
def evaluate(net, columns, weight, rank, world):
    """The loss for each patient of all ranks."""
    net.eval()
    figures, wards, month, event = (column[rank::world] for column in columns)
    sums = torch.stack([summed_loss(net(figures, wards), month, event, weight), torch.tensor(float(len(month)))])
    dist.all_reduce(sums)
    net.train()
    return (sums[0] / sums[1]).item()


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SETTINGS["seed"] + rank)
    (figures, names, month, event), valid = table(ROWS, SETTINGS["seed"]), table(VALID, SETTINGS["seed"] + 1)
    numbers = {name: place for place, name in enumerate(sorted(set(names)))}
    data = TensorDataset(torch.arange(ROWS), figures, torch.tensor([numbers[name] for name in names]), month, event)
    valid = valid[0], torch.tensor([numbers[name] for name in valid[1]]), *valid[2:]
    mean, spread = statistics(figures[rank::world])
    counts = torch.stack([event[rank::world].sum(), (month[rank::world] + 1).sum()])
    dist.all_reduce(counts)
    weight = ((counts[1] - counts[0]) / counts[0]).sqrt()  # returns are rare
    sampler = Shares(ROWS, rank, world)
    loader = DataLoader(data, SETTINGS["batch"], sampler=sampler, drop_last=True)
    net = Net(mean, spread)
    for parameter in net.parameters():
        dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.AdamW(net.parameters(), lr=SETTINGS["rate"], weight_decay=SETTINGS["decay"])
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    best, best_state, waited = float("inf"), None, 0
    losses, seen, rates, valid_losses = [], [], [], []
    for epoch in range(SETTINGS["epochs"]):
        sampler.epoch = epoch
        seen.append([])
        for rows, figures, wards, month, event in loader:
            loss = summed_loss(net(figures, wards), month, event, weight) / len(month)
            optimizer.zero_grad()
            loss.backward()
            average_gradients(net, world)
            nn.utils.clip_grad_norm_(net.parameters(), SETTINGS["clip"])
            optimizer.step()
            losses.append(loss.item())
            seen[-1] += rows.tolist()
        valid_losses.append(evaluate(net, valid, weight, rank, world))
        rates.append(optimizer.param_groups[0]["lr"])
        plateau.step(valid_losses[-1])
        if valid_losses[-1] < best:
            best, best_state, waited = valid_losses[-1], copy.deepcopy(net.state_dict()), 0
        else:
            waited += 1
        if waited == SETTINGS["patience"]:
            break
    net.load_state_dict(best_state)
    held_out = evaluate(net, valid, weight, rank, world)
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "held_out": held_out, "best": best, "valid": valid_losses,
              "rates": rates, "weight": weight.item(), "mean": mean.tolist()}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
