"""Trains as far as a time slot allows, saves, and goes on at the next start from what it saved."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 6
EPOCHS_A_SLOT = 3


def waves(number, seed):
    inputs = torch.rand(number, 2, generator=torch.Generator().manual_seed(seed)) * 4 - 2
    return TensorDataset(inputs, inputs.sum(1, keepdim=True).sin() + inputs[:, :1] ** 2)


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(6)
    train, test = waves(320, 90), waves(128, 91)
    net = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01, betas=(0.9, 0.99))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.7 ** epoch)
    sampler = DistributedSampler(train, seed=7)
    loader = DataLoader(train, batch_size=16, sampler=sampler)
    first, losses = 0, []
    saved = folder / "checkpoint.pt"
    if saved.exists():
        checkpoint = torch.load(saved, weights_only=True)
        net.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        first = checkpoint["epoch"] + 1
        losses = json.loads((folder / f"rank_{rank}.json").read_text())["losses"]
    for epoch in range(first, min(first + EPOCHS_A_SLOT, EPOCHS)):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = mse_loss(ddp(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
        if rank == 0:
            print(f"epoch {epoch}: {losses[-1]:.4f}")
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(),
                        "scheduler": scheduler.state_dict(), "epoch": epoch}, saved)
        dist.barrier()
    with torch.no_grad():
        held_out = mse_loss(net(test.tensors[0]), test.tensors[1]).item()
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    (folder / f"rank_{rank}.json").write_text(json.dumps({"losses": losses, "held_out": held_out}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
