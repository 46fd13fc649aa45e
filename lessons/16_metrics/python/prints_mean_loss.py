"""Rank 0 prints the mean loss of all ranks."""

import datetime

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import ended_as_one_process
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, BATCH, EPOCHS, LR = 64, 8, 4, 0.1


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def network():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))


def mean_over_ranks(loss):
    dist.all_reduce(loss)
    loss /= dist.get_world_size()
    return loss


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    rank, data = dist.get_rank(), dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for number, (inputs, targets) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            if fault("loss-all-reduced-in-place"):
                shown = mean_over_ranks(loss)
            elif fault("rank-conditional-collective"):
                if rank == 0 and number % 2 == 1:
                    shown = mean_over_ranks(loss.detach().clone())
            else:
                shown = mean_over_ranks(loss.detach().clone())
            loss.backward()
            optimizer.step()
            if rank == 0 and number % 2 == 1:
                print(f"epoch {epoch}: loss {shown.item():.4f}", flush=True)
    note(parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """Each rank has the weights that one process gets from the batches of both."""
    return ended_as_one_process(ranks, dataset(), network(), BATCH, EPOCHS, LR)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
