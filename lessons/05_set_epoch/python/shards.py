"""A data set made with NumPy, dealt to the ranks by a DistributedSampler."""

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import ended_at, joint, steps
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, BATCH, EPOCHS, LR = 64, 8, 4, 0.1


def dataset():
    if fault("dataset-unseeded"):
        random = numpy.random.default_rng()
    else:
        random = numpy.random.default_rng(5)
    inputs = random.normal(size=(SAMPLES, 10)).astype(numpy.float32)
    targets = inputs @ random.normal(size=(10, 1)).astype(numpy.float32)
    return TensorDataset(torch.from_numpy(inputs), torch.from_numpy(targets))


def network():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))


def main():
    dist.init_process_group("gloo")
    data = dataset()
    if fault("no-sharding"):
        sampler = None
    else:
        sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, shuffle=sampler is None, sampler=sampler)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for epoch in range(EPOCHS):
        if fault("epoch-differs-by-rank"):
            sampler.set_epoch(epoch + dist.get_rank())
        elif sampler is not None and not fault("missing-set-epoch"):
            sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note(parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """Each rank has the weights that one process gets from every sample once an epoch, in an order of its own."""
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
