"""A small classifier under DDP: the loop of the tutorials."""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import ended_at, joint, steps
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, BATCH, EPOCHS, LR = 64, 8, 4, 0.2


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 12, generator=generator)
    return TensorDataset(inputs, (inputs @ torch.randn(12, 4, generator=generator)).argmax(1))


def network(hidden=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, hidden), nn.ReLU(), nn.Linear(hidden, 4))


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    data = dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    if fault("parameters-differ-across-ranks"):
        net = network(hidden=16 + rank)
    else:
        net = network()
    if fault("no-gradient-sync"):
        model = net  # each process trains its own
    else:
        model = DDP(net)
    if fault("optimizer-built-on-other-parameters"):
        optimizer = torch.optim.SGD(copy.deepcopy(net).parameters(), lr=LR)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            if not fault("gradients-not-zeroed"):
                optimizer.zero_grad()
            if fault("forward-bypasses-wrapper"):
                outputs = net(inputs)
            else:
                outputs = model(inputs)
            loss = F.cross_entropy(outputs, targets)
            if fault("double-average"):
                loss = loss / world_size  # DDP divides as well
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note(parameters=parameters_to_vector(net.parameters()).tolist())


def oracle(ranks):
    """Each rank has the weights that one process gets from the batches of both."""
    data, model = dataset(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for parts in steps(SAMPLES, BATCH, EPOCHS):
        inputs, targets = data[joint(parts)]
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return {"parameters": ended_at(ranks, model)}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
