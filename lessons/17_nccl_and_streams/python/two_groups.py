"""A process group for the gradients, and a second one for the figures that are logged."""

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

SAMPLES, BATCH, EPOCHS, LR = 64, 8, 3, 0.05
IN_TIME = datetime.timedelta(seconds=8)


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def network():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))


def mean_over_ranks(loss, group):
    total = loss.detach().clone()
    dist.all_reduce(total, group=group)
    return total.item() / dist.get_world_size()


def main():
    dist.init_process_group("gloo", timeout=IN_TIME)
    figures = dist.new_group(timeout=IN_TIME)
    rank, data = dist.get_rank(), dataset()
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            if fault("communicator-order") and rank == 0:
                mean = mean_over_ranks(loss, figures)
                loss.backward()
            else:
                loss.backward()
                mean = mean_over_ranks(loss, figures)
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {mean:.4f}", flush=True)
    note(parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """Each rank has the weights that one process gets from the batches of both."""
    return ended_as_one_process(ranks, dataset(), network(), BATCH, EPOCHS, LR)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
