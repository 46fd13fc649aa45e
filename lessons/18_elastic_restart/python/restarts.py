"""A long job, on machines that are taken away now and then: it is started again, and writes a log."""

import pathlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

EPOCHS = 4


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def main():
    path, log = pathlib.Path(sys.argv[1], "checkpoint.pt"), pathlib.Path(sys.argv[1], "log.txt")
    dist.init_process_group("gloo")
    rank, data = dist.get_rank(), dataset()
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    is_taken_away = not path.exists()  # once
    first_epoch = 0
    if path.exists() and not fault("restart-without-resume"):
        saved = torch.load(path)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first_epoch = saved["epoch"] + 1
    model = DDP(net)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    for epoch in range(first_epoch, EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        if rank == 0:
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, path)
            with log.open("a") as lines:
                lines.write(f"epoch {epoch}\n")
        dist.barrier()
        if is_taken_away and epoch == 1:
            return
    note(log=log.read_text().splitlines())


def oracle(ranks):
    """Every epoch was trained once."""
    return {"log": all(one["log"] == [f"epoch {epoch}" for epoch in range(EPOCHS)] for one in ranks)}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
