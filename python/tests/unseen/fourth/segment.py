"""Segmentation: a small U-net marks each pixel of noisy pictures as ground, disc or square."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, interpolate, max_pool2d
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SEED = 7
EPOCHS = 6
BATCH = 8
PICTURES = 144
TEST_PICTURES = 48
SIDE = 24
CLASSES = 3
RATE = 0.1


def draw(number):
    """The picture of that number, and the class of each of its pixels."""
    dice = torch.Generator().manual_seed(number)
    rows, columns = torch.arange(SIDE)[:, None], torch.arange(SIDE)
    row, column, down, across = torch.randint(4, SIDE - 4, (4,), generator=dice).tolist()
    half, radius = torch.randint(2, 6, (2,), generator=dice).tolist()
    mask = torch.zeros(SIDE, SIDE, dtype=torch.long)
    mask[((rows - row).abs() <= half) & ((columns - column).abs() <= half)] = 2
    mask[(rows - down) ** 2 + (columns - across) ** 2 <= radius**2] = 1
    tone = torch.tensor([0.0, 1.0, 1.2])[mask]
    return tone[None] + 0.4 * torch.randn(1, SIDE, SIDE, generator=dice), mask


class Pictures(Dataset):
    """Pictures by their numbers; for training, half of them are mirrored."""

    def __init__(self, numbers, training):
        self.numbers, self.training = list(numbers), training

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, place):
        picture, mask = draw(self.numbers[place])
        if self.training and torch.rand(()) < 0.5:
            picture, mask = picture.flip(-1), mask.flip(-1)
        return self.numbers[place], picture, mask


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fine = block(1, 8)
        self.coarse = nn.Sequential(block(8, 16), block(16, 16))
        self.joined = block(24, 12)
        self.head = nn.Conv2d(12, CLASSES, 1)

    def forward(self, pictures):
        fine = self.fine(pictures)
        coarse = interpolate(self.coarse(max_pool2d(fine, 2)), scale_factor=2)
        return self.head(self.joined(torch.cat([fine, coarse], 1)))


def class_weights(numbers):
    """Rare classes weigh more. Each rank counts the pixels of its part."""
    counts = sum(torch.bincount(draw(number)[1].flatten(), minlength=CLASSES) for number in numbers)
    dist.all_reduce(counts)
    weights = (counts.sum() / counts).sqrt()
    return weights / weights.mean()


def average_statistics(net, world):
    """What batch norm has seen becomes the mean over the ranks."""
    for buffer in net.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer /= world


@torch.no_grad()
def validate(net, loader):
    """Loss for each pixel, and the mean over the classes of the intersection over the union."""
    net.eval()
    sums = torch.zeros(2, dtype=torch.float64)
    confusion = torch.zeros(CLASSES * CLASSES)
    for _, pictures, masks in loader:
        scores = net(pictures)
        sums += torch.tensor([cross_entropy(scores, masks, reduction="sum").item(), masks.numel()])
        confusion += torch.bincount((masks * CLASSES + scores.argmax(1)).flatten(), minlength=CLASSES * CLASSES)
    dist.all_reduce(sums)
    dist.all_reduce(confusion)
    net.train()
    confusion = confusion.view(CLASSES, CLASSES)
    hits = confusion.diag()
    return (sums[0] / sums[1]).item(), (hits / (confusion.sum(0) + confusion.sum(1) - hits)).mean().item()


def main():
    folder = pathlib.Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(SEED + rank)
    pictures = Pictures(range(PICTURES), training=True)
    test = Pictures(range(10_000 + rank, 10_000 + TEST_PICTURES, world), training=False)
    sampler = DistributedSampler(pictures, seed=SEED)
    loader = DataLoader(pictures, BATCH, sampler=sampler)
    test_loader = DataLoader(test, 2 * BATCH)
    net = Net()
    model = DistributedDataParallel(net)
    weights = class_weights(range(rank, PICTURES, world))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, nesterov=True, weight_decay=1e-4)
    steps = EPOCHS * len(loader)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=steps, power=0.9)
    losses, seen, validated = [], [], []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        seen.append([])
        for numbers, batch, masks in loader:
            loss = cross_entropy(model(batch), masks, weight=weights)
            optimizer.zero_grad()
            loss.backward()
            clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
            seen[-1] += numbers.tolist()
        average_statistics(net, world)
        held_out, overlap = validate(net, test_loader)
        validated.append(held_out)
        if rank == 0:
            print(f"epoch {epoch}: held-out loss {held_out:.4f}, overlap {overlap:.3f}")
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, folder / "last.pt")
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "held_out": held_out, "validated": validated,
              "class_weights": weights.tolist()}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
