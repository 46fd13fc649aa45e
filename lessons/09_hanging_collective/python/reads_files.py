"""Samples come from files, some of them from a slow disk; one rank may fail while the other is well."""

import datetime
import os
import pathlib
import signal
import sys
import time

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from twin import fault, note

TIMEOUT = datetime.timedelta(seconds=4)  # of a collective
BAD = "sample021.npy"


class Files(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        if path.name == BAD:
            if fault("one-rank-raises"):
                raise ValueError(f"a damaged sample: {path.name}")
            if fault("slow-rank"):
                time.sleep(TIMEOUT.total_seconds() + 2)
            if fault("peer-dies"):
                os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory runs out
        values = torch.from_numpy(numpy.load(path))
        return values[:-1], values[-1:]


def write_files(folder):
    random = numpy.random.default_rng(4)
    for number in range(64):
        inputs = random.normal(size=9).astype(numpy.float32)
        numpy.save(folder / f"sample{number:03}.npy", numpy.append(inputs, inputs.sum()))


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo", timeout=TIMEOUT)
    rank = dist.get_rank()
    if rank == 0:
        write_files(folder)
    dist.barrier()
    data = Files(sorted(folder.glob("sample*.npy")))
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    torch.manual_seed(0)
    model = DDP(nn.Linear(9, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note()


def oracle(ranks):
    """All ranks come to the end."""
    return {}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
