"""The first job's time is over while rank 0 saves; the second one goes on from the checkpoint that there is."""

import io
import os
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import ended_at, joint, steps
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, BATCH, EPOCHS, LR = 64, 8, 4, 0.05


class SlowFile(io.FileIO):
    """On a disk that is so slow that the job's time is over before the file is whole."""

    time_is_over = False

    def write(self, data):
        if SlowFile.time_is_over and self.tell() > 0:
            os._exit(0)
        return super().write(data)


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def network():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))


def save(state, path):
    if fault("torn-checkpoint"):
        with SlowFile(path, "wb") as file:
            torch.save(state, file)
    else:
        new = path.with_suffix(".new")
        with SlowFile(new, "wb") as file:
            torch.save(state, file)
            os.fsync(file.fileno())
        os.replace(new, path)


def main():
    path = pathlib.Path(sys.argv[1], "checkpoint.pt")
    dist.init_process_group("gloo")
    rank, data, net = dist.get_rank(), dataset(), network()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    first_epoch = 0
    saved = torch.load(path) if path.exists() else None
    if saved:
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first_epoch = saved["epoch"] + 1
    model = DDP(net)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    for epoch in range(first_epoch, EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        SlowFile.time_is_over = not saved and epoch == 2
        if rank == 0:
            save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, path)
        elif SlowFile.time_is_over:
            os._exit(0)
        dist.barrier()
    note(parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """Each rank has the weights of one process that was never interrupted."""
    data, model = dataset(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for parts in steps(SAMPLES, BATCH, EPOCHS):
        inputs, targets = data[joint(parts)]
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return {"parameters": ended_at(ranks, model)}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
