"""Slurm starts a task for each GPU. A node's first task launches the ranks; in the night one of them is killed."""

import os
import pathlib
import signal
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

EPOCHS = 4


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def train(folder):
    path = folder / "checkpoint.pt"
    dist.init_process_group("gloo")
    rank, data = dist.get_rank(), dataset()
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    is_killed = rank == 1 and not path.exists()  # once
    first_epoch = 0
    if path.exists():
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
        dist.barrier()
        if is_killed and epoch == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    note(last=epoch)
    dist.destroy_process_group()


def launch(folder):
    if fault("restart-expected-by-default"):
        max_restarts = 0  # as torchrun has it
    else:
        max_restarts = 1
    # A store for each attempt: in a shared one a restarted rank finds the addresses of the first attempt, too.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, max_restarts=max_restarts,
                          rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0")
    elastic_launch(config, sys.executable)(__file__, str(folder), "rank")


def oracle(ranks):
    """All epochs are trained."""
    return {"last": all(one["last"] == EPOCHS - 1 for one in ranks)}


if __name__ == "__main__":
    if "rank" in sys.argv:
        train(pathlib.Path(sys.argv[1]))
    elif os.environ["RANK"] == "0":
        launch(pathlib.Path(sys.argv[1]))
