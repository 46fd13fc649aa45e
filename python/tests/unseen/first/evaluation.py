"""Validates each epoch with sums gathered from all ranks; the plateau, the end and the best weights go by them."""

import copy
import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 16
PATIENCE = 3


def noisy(number, seed):
    """Two classes, a tenth of the labels wrong: a net that goes on too long learns the noise."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(number, 10, generator=generator)
    labels = (inputs[:, 0] + inputs[:, 1] * inputs[:, 2] > 0).long()
    wrong = torch.rand(number, generator=generator) < 0.1
    return TensorDataset(inputs, torch.where(wrong, 1 - labels, labels))


def validate(ddp, loader):
    """Mean loss and accuracy over the ranks' shares."""
    ddp.eval()
    sums = torch.zeros(3)
    with torch.no_grad():
        for inputs, labels in loader:
            outputs = ddp(inputs)
            sums[0] += cross_entropy(outputs, labels, reduction="sum")
            sums[1] += (outputs.argmax(1) == labels).sum()
            sums[2] += len(labels)
    dist.all_reduce(sums)
    return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    train, valid = noisy(192, 84), noisy(140, 81)
    net = nn.Sequential(nn.Linear(10, 128), nn.ReLU(), nn.Dropout(0.4), nn.Linear(128, 2))
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.012)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    sampler = DistributedSampler(train, seed=6)
    loader = DataLoader(train, batch_size=16, sampler=sampler)
    valid_loader = DataLoader(valid, batch_size=32, sampler=DistributedSampler(valid, shuffle=False))
    torch.manual_seed(50 + rank)  # each rank drops other units
    losses, validated, best, best_epoch, best_weights = [], [], float("inf"), 0, None
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        ddp.train()
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(ddp(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        mean, accuracy = validate(ddp, valid_loader)
        validated.append(mean)
        plateau.step(mean)
        if rank == 0:
            print(f"epoch {epoch}: validation {mean:.4f}, accuracy {accuracy:.3f}")
        if mean < best:
            best, best_epoch, best_weights = mean, epoch, copy.deepcopy(net.state_dict())
        elif epoch - best_epoch >= PATIENCE:
            break
    net.load_state_dict(best_weights)
    held_out, accuracy = validate(ddp, valid_loader)
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    (folder / f"rank_{rank}.json").write_text(json.dumps(
        {"losses": losses, "held_out": held_out, "accuracy": accuracy, "validated": validated, "best": best}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
