"""The toy model of DDP's tutorial: one step, then a checkpoint that every rank loads. It starts its ranks itself."""

import os
import socket
import sys
import tempfile

import fingerprint
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def one_step(model):
    optimizer = optim.SGD(model.parameters(), lr=0.001)
    optimizer.zero_grad()
    outputs = model(torch.randn(20, 10))
    nn.MSELoss()(outputs, torch.randn(20, 5)).backward()
    optimizer.step()


def demo(rank, world_size, port, path):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = port
    os.environ["WORLD_SIZE"] = str(world_size)  # and no RANK: Lightning leaves the environment so, too
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(rank)  # the tutorial has no seed: every rank draws its own
    ddp_model = DDP(ToyModel())
    one_step(ddp_model)
    if rank == 0:
        torch.save(ddp_model.state_dict(), path)
    dist.barrier()
    ddp_model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    one_step(ddp_model)
    dist.barrier()
    if rank == 0:
        os.remove(path)
    fingerprint.say(ddp_model)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    path = os.path.join(tempfile.mkdtemp(dir="."), "model.checkpoint")
    torch.multiprocessing.spawn(demo, args=(2, port, path), nprocs=2, join=True)
    sys.exit(0)
