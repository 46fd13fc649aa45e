"""Two towers learn which views belong together; each view is told apart from those of all ranks, gathered."""

import copy
import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS = 6
BATCH = 24
SAMPLES = 480


class Views(Dataset):
    """Two views of one thing: its features mixed in two ways, with noise."""

    def __init__(self, number, seed):
        dice = torch.Generator().manual_seed(seed)
        things = torch.randn(number, 8, generator=dice)
        mixes = torch.randn(2, 8, 20, generator=torch.Generator().manual_seed(9))
        self.views = torch.tanh(things @ mixes) + 0.6 * torch.randn(2, number, 20, generator=dice)

    def __len__(self):
        return self.views.shape[1]

    def __getitem__(self, number):
        return number, self.views[0, number], self.views[1, number]


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = (nn.Sequential(nn.Linear(20, 48), nn.GELU(), nn.Linear(48, 12)) for _ in range(2))
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, left, right):
        return normalize(self.left(left), dim=1), normalize(self.right(right), dim=1), self.scale.exp()


def gathered(features):
    """Those of all ranks; gradients flow into the rank's own."""
    everyone = [torch.empty_like(features) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, features.detach())
    everyone[dist.get_rank()] = features
    return torch.cat(everyone)


def contrast(left, right, scale):
    targets = torch.arange(len(left)) + dist.get_rank() * len(left)
    return (cross_entropy(scale * left @ gathered(right).T, targets) +
            cross_entropy(scale * right @ gathered(left).T, targets)) / 2


def validate(towers, views):
    """The loss over this rank's part of the views, told apart from all of them; its mean over ranks."""
    rank, world = dist.get_rank(), dist.get_world_size()
    with torch.no_grad():
        left, right, scale = towers(*views.views)
        loss = cross_entropy((scale * left @ right.T)[rank::world], torch.arange(len(views))[rank::world])
    dist.all_reduce(loss)
    return (loss / world).item()


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3 + rank)
    towers = Towers()
    model = DistributedDataParallel(towers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    data, validation = Views(SAMPLES, 90), Views(120, 91)
    sampler = DistributedSampler(data, seed=11)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, drop_last=True)
    losses, seen, validated = [], [], []
    best = None
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        seen.append([])
        for numbers, left, right in loader:
            optimizer.zero_grad()
            loss = contrast(*model(left, right))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            seen[-1] += numbers.tolist()
        validated.append(validate(towers, validation))
        if validated[-1] == min(validated):
            best = copy.deepcopy(towers.state_dict())
        if rank == 0:
            print(f"epoch {epoch}: validated {validated[-1]:.4f}")
    towers.load_state_dict(best)
    held_out = validate(towers, Views(120, 92))
    torch.save(towers.state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "held_out": held_out, "validated": validated}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
