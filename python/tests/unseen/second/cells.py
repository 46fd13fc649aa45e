"""Finds cells in pictures: two a rank and step, so batch norm is over ranks; tested are the averaged weights."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as across
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

STEPS = 60
BATCH = 2
SIDE = 16
DECAY = 0.9


def pictures(number, seed):
    """Bright discs before a background of another brightness in each picture."""
    dice = torch.Generator().manual_seed(seed)
    rows = torch.arange(SIDE)[:, None]
    masks = torch.zeros(number, 1, SIDE, SIDE)
    for mask in masks:
        for row, column in torch.randint(2, SIDE - 2, (3, 2), generator=dice).tolist():
            mask[0][(rows - row) ** 2 + (rows.T - column) ** 2 <= 5] = 1
    light = 20 + 60 * torch.rand(number, 1, 1, 1, generator=dice)
    return light + 25 * masks + 10 * torch.randn(masks.shape, generator=dice), masks


class SyncNorm(nn.BatchNorm2d):
    """As nn.SyncBatchNorm, which wants a GPU."""

    def __init__(self, channels, group=None):
        super().__init__(channels)
        self.group = group or dist.group.WORLD

    def forward(self, maps):
        if not self.training:
            return super().forward(maps)
        count = maps.numel() / maps.shape[1] * dist.get_world_size(self.group)
        mean = across.all_reduce(maps.sum([0, 2, 3]), group=self.group) / count
        centred = maps - mean[:, None, None]
        variance = across.all_reduce(centred.pow(2).sum([0, 2, 3]), group=self.group) / count
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * count / (count - 1), self.momentum)
        return (centred * (self.weight / (variance + self.eps).sqrt())[:, None, None]) + self.bias[:, None, None]


def over_ranks(model, group=None):
    """Every batch norm in it becomes one over the group's ranks."""
    for name, part in model.named_children():
        if isinstance(part, nn.BatchNorm2d):
            setattr(model, name, SyncNorm(part.num_features, group))
        else:
            over_ranks(part, group)
    return model


def block(before, after):
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


class Finder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(block(1, 8), nn.MaxPool2d(2), block(8, 12))
        self.up = nn.Upsample(scale_factor=2)
        self.end = nn.Sequential(block(13, 8), nn.Conv2d(8, 1, 1))

    def forward(self, picture):
        return self.end(torch.cat([picture, self.up(self.down(picture))], 1))


def follow(average, model):
    with torch.no_grad():
        for mean, now in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
            mean.lerp_(now, 1 - DECAY) if mean.is_floating_point() else mean.copy_(now)


def test_loss(model, seen, masks):
    with torch.no_grad():
        return binary_cross_entropy_with_logits(model(seen), masks).item()


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(10 + rank)
    finder = over_ranks(Finder())
    model = DistributedDataParallel(finder)
    average = Finder().eval()
    average.load_state_dict(finder.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    every_picture, every_mask = pictures(160, 40)
    light, spread = every_picture.mean(), every_picture.std()
    own_pictures, own_masks = (every_picture[rank::world] - light) / spread, every_mask[rank::world]
    test_pictures, test_masks = pictures(40, 41)
    test_pictures = (test_pictures - light) / spread
    dice = torch.Generator().manual_seed(90 + rank)
    losses = []
    for step in range(STEPS):
        chosen = torch.randint(0, len(own_pictures), (BATCH,), generator=dice)
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(model(own_pictures[chosen]), own_masks[chosen])
        loss.backward()
        optimizer.step()
        follow(average, finder)
        losses.append(loss.item())
        if rank == 0 and step % 20 == 19:
            print(f"step {step}: {loss.item():.4f}, tested {test_loss(average, test_pictures, test_masks):.4f}")
    held_out = test_loss(average, test_pictures, test_masks)
    weights = {f"{name}.{key}": value for name, one in (("finder", finder), ("average", average))
               for key, value in one.state_dict().items()}
    torch.save(weights, folder / f"rank_{rank}.pt")
    report = {"losses": losses, "held_out": held_out, "light": light.item(), "spread": spread.item()}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
