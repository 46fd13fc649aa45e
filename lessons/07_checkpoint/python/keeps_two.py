"""Saves a checkpoint in every epoch, and keeps the newest two."""

import pathlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

EPOCHS, KEPT = 5, 2


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def save(state, folder, epoch):
    torch.save(state, folder / f"epoch{epoch}.pt")
    if epoch >= KEPT:
        (folder / f"epoch{epoch - KEPT}.pt").unlink()


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, data = dist.get_rank(), dataset()
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "loss": loss.item()}
        if fault("concurrent-writers"):
            save(state, folder, epoch)
        elif rank == 0:
            save(state, folder, epoch)
        dist.barrier()
    files = sorted(path.name for path in folder.glob("epoch*.pt"))
    saved = torch.load(folder / files[-1])["model"]
    note(files=files, saved=saved["0.weight"].tolist(), weights=net[0].weight.tolist())


def oracle(ranks):
    """The newest two are there, and the last has every rank's weights."""
    newest = [f"epoch{epoch}.pt" for epoch in range(EPOCHS - KEPT, EPOCHS)]
    return {"files": all(one["files"] == newest for one in ranks),
            "saved": all(one["saved"] == one["weights"] for one in ranks)}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
