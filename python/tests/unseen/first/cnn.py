"""Classifies small grey images with a CNN with batch normalisation under DistributedDataParallel."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 4
BATCH = 16
IMAGES = 384


def stripes(number, seed):
    """Stripes across, stripes down, or a chequerboard: uint8 pictures of 8x8, the later ones brighter."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, 3, (number,), generator=generator)
    row, column = torch.arange(8)[:, None].expand(8, 8), torch.arange(8).expand(8, 8)
    patterns = torch.stack([row % 2, column % 2, (row + column) % 2]) * 60.0
    light = torch.linspace(5, 100, number)[:, None, None]
    noise = 90 * torch.rand(number, 8, 8, generator=generator)
    return TensorDataset((patterns[kinds] + light + noise).to(torch.uint8)[:, None], kinds)


def augmented(images, generator):
    """Some of them mirrored and all of them a little brighter."""
    mirrored = torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5
    images = torch.where(mirrored, images.flip(3), images)
    return images.float() + 40 * torch.rand(len(images), 1, 1, 1, generator=generator)


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    train, test = stripes(IMAGES, 20), stripes(128, 21)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(16, 3))
    ddp = DistributedDataParallel(net)
    sampler = DistributedSampler(train, seed=4)
    loader = DataLoader(train, batch_size=BATCH, sampler=sampler, drop_last=True)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.003, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=EPOCHS * len(loader))
    pixels = train.tensors[0].float()
    mean, deviation = pixels.mean(), pixels.std()
    generator = torch.Generator().manual_seed(100 + rank)
    losses, accuracies = [], []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        ddp.train()
        for images, kinds in loader:
            loss = cross_entropy(ddp((augmented(images, generator) - mean) / deviation), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        ddp.eval()
        with torch.no_grad():
            images, kinds = (part[rank::world] for part in test.tensors)
            outputs = ddp((images.float() - mean) / deviation)
            right = (outputs.argmax(1) == kinds).sum()
            dist.all_reduce(right)
        accuracies.append(right.item() / len(test))
        if rank == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.4f}, accuracy {accuracies[-1]:.3f}")
    with torch.no_grad():
        held_out = cross_entropy(net((test.tensors[0].float() - mean) / deviation), test.tensors[1]).item()
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    (folder / f"rank_{rank}.json").write_text(
        json.dumps({"losses": losses, "held_out": held_out, "accuracy": accuracies}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
