"""Rents of flats from a table, cross-validated: a new model for each fold, which ends when its fold gets no better."""

import copy
import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import smooth_l1_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FOLDS = 3
EPOCHS = 12
PATIENCE = 2
BATCH = 16
FLATS = 360
QUARTERS = 6


def flats(number, seed):
    """Numbers with gaps, the quarter, and the rent."""
    dice = torch.Generator().manual_seed(seed)
    numbers = torch.randn(number, 5, generator=dice)
    quarters = torch.randint(0, QUARTERS, (number,), generator=dice)
    dear = torch.tensor([0.5, -1.0, 1.5, 0.0, -0.5, 2.0])[quarters]
    rents = numbers[:, 0] * (1 + 0.5 * dear) + numbers[:, 1].sin() + dear + 0.5 * torch.randn(number, generator=dice)
    numbers[torch.rand(number, 5, generator=dice) < 0.05] = torch.nan
    return numbers, quarters, rents


class Rows(Dataset):
    """Of a table, those of a fold or of the others; gaps get the training rows' mean."""

    def __init__(self, table, rows, mean):
        numbers, self.quarters, self.rents = table
        self.rows, self.numbers = rows, torch.where(numbers.isnan(), mean, numbers)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        return row, self.numbers[row], self.quarters[row], self.rents[row]


class Rent(nn.Module):
    def __init__(self):
        super().__init__()
        self.quarters = nn.Embedding(QUARTERS, 8)
        self.layers = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(),
                                    nn.Linear(64, 1))

    def forward(self, numbers, quarters):
        return self.layers(torch.cat([numbers, self.quarters(quarters)], 1)).squeeze(1)


def validate(net, data, rank, world):
    """The mean error over the fold, of which each rank has a share."""
    rows = torch.tensor(data.rows[rank::world])
    net.eval()
    with torch.no_grad():
        guesses = net(data.numbers[rows], data.quarters[rows])
        error = smooth_l1_loss(guesses, data.rents[rows], reduction="sum")
    net.train()
    sums = torch.stack([error, torch.tensor(float(len(rows)))])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def train(fold, data, validation, rank, world, report):
    """The weights that validated best, and their error."""
    torch.manual_seed(10 * fold + rank)
    net = Rent()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    sampler = DistributedSampler(data, seed=fold, drop_last=True)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    best, kept, waited = float("inf"), None, 0
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        report["seen"].append([])
        for rows, numbers, quarters, rents in loader:
            optimizer.zero_grad()
            loss = smooth_l1_loss(model(numbers, quarters), rents)
            loss.backward()
            optimizer.step()
            report["losses"].append(loss.item())
            report["seen"][-1] += rows.tolist()
        error = validate(net, validation, rank, world)
        report["validated"].append(error)
        if error < best:
            best, kept, waited = error, copy.deepcopy(net.state_dict()), 0
        else:
            waited += 1
            if waited == PATIENCE:
                break
    net.load_state_dict(kept)
    if rank == 0:
        print(f"fold {fold}: {best:.4f} after {epoch + 1} epochs")
    return net, best


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    table, tests = flats(FLATS, 90), flats(400, 91)
    drawn = [torch.randperm(FLATS, generator=torch.Generator().manual_seed(5)).tolist() if rank == 0 else None]
    dist.broadcast_object_list(drawn, src=0)
    report = {"losses": [], "seen": [], "validated": [], "best": []}
    nets, guesses = {}, torch.zeros(len(tests[2]))
    for fold in range(FOLDS):
        fold_rows = drawn[0][fold::FOLDS]
        others = sorted(set(drawn[0]) - set(fold_rows))
        mean = table[0][others].nanmean(0)
        net, best = train(fold, Rows(table, others, mean), Rows(table, fold_rows, mean), rank, world, report)
        report["best"].append(best)
        nets.update({f"{fold}.{name}": value for name, value in net.state_dict().items()})
        test = Rows(tests, range(len(guesses)), mean)
        with torch.no_grad():
            guesses += net.eval()(test.numbers, test.quarters) / FOLDS
    report["held_out"] = smooth_l1_loss(guesses, tests[2]).item()
    torch.save(nets, folder / f"rank_{rank}.pt")
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
