"""Runs on one GPU as well as on many, by what the launcher says."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import ended_as_one_process
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, BATCH, EPOCHS, LR = 64, 8, 4, 0.05


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def network():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))


def main():
    if fault("silent-single-process"):
        rank = int(os.environ.get("SLURM_PROCID", 0))
        world_size = int(os.environ.get("SLURM_NTASKS", 1))
    else:
        rank = int(os.environ["RANK"])
        world_size = int(os.environ["WORLD_SIZE"])
    data, model = dataset(), network()
    if world_size > 1:
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        model = DDP(model)
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note(parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """Each rank has the weights that one process gets from the batches of both."""
    return ended_as_one_process(ranks, dataset(), network(), BATCH, EPOCHS, LR)


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
