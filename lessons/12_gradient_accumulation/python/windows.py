"""Gradient accumulation where an epoch's last update has fewer samples: its loss is the mean over them."""

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import ended_at, joint, steps
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, MICROBATCH, ACCUMULATE, EPOCHS, LR = 108, 4, 4, 3, 0.1


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def network():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))


def main():
    dist.init_process_group("gloo")
    rank, data = dist.get_rank(), dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=MICROBATCH, sampler=sampler)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for number, (inputs, targets) in enumerate(loader):
            if number % ACCUMULATE == 0:
                optimizer.zero_grad()
                microbatches = min(ACCUMULATE, len(loader) - number)
                samples = min(ACCUMULATE * MICROBATCH, len(sampler) - number * MICROBATCH)
            if fault("last-accumulation-window-lost"):
                is_last = (number + 1) % ACCUMULATE == 0
            else:
                is_last = (number + 1) % ACCUMULATE == 0 or number + 1 == len(loader)
            with contextlib.nullcontext() if is_last else model.no_sync():
                losses = F.mse_loss(model(inputs), targets, reduction="none")
                if fault("mean-of-microbatch-means"):
                    loss = losses.mean() / microbatches
                else:
                    loss = losses.sum() / samples
                loss.backward()
            if is_last:
                optimizer.step()
                if rank == 0:
                    print(f"epoch {epoch}: an update of {samples} samples in {microbatches}, "
                          f"loss {losses.mean().item():.4f}", flush=True)
    note(parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """Each rank has the weights of one process with the whole batch."""
    data, model = dataset(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for parts in steps(SAMPLES, MICROBATCH * ACCUMULATE, EPOCHS):
        inputs, targets = data[joint(parts)]
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return {"parameters": ended_at(ranks, model)}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
