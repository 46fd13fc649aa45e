"""Gradient accumulation: an update for four microbatches, and one reduction for each update."""

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import ended_at, joint, steps
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import get_total_norm, parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, MICROBATCH, ACCUMULATE, EPOCHS, LR = 128, 4, 4, 3, 0.1


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
    norms = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for number, (inputs, targets) in enumerate(loader):
            if fault("accumulation-off-by-one"):
                is_last = number % ACCUMULATE == 0
            else:
                is_last = (number + 1) % ACCUMULATE == 0
            if is_last or fault("sync-every-microbatch"):
                syncing = contextlib.nullcontext()
            else:
                syncing = model.no_sync()
            if fault("no-sync-around-backward-only"):
                loss = F.mse_loss(model(inputs), targets)
                with syncing:
                    (loss / ACCUMULATE).backward()
            else:
                with syncing:
                    loss = F.mse_loss(model(inputs), targets)
                    if fault("accumulation-not-divided"):
                        loss.backward()
                    else:
                        (loss / ACCUMULATE).backward()
            norms.append(get_total_norm([parameter.grad for parameter in model.parameters()]).item())
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}, gradient norm {norms[-1]:.4f}", flush=True)
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
    note(norms=norms, parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """The weights are those of one process with the whole batch; until an update is due, gradients are a rank's own."""
    data, model = dataset(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for parts in steps(SAMPLES, MICROBATCH * ACCUMULATE, EPOCHS):
        inputs, targets = data[joint(parts)]
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return {"parameters": ended_at(ranks, model), "own gradients": ranks[0]["norms"][0] != ranks[1]["norms"][0]}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
