"""Data-parallel training without a wrapper: weights are broadcast, gradients averaged, by hand."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import ended_at, joint, steps
from torch import nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, BATCH, EPOCHS, LR, LIMIT = 64, 8, 4, 0.05, 4.0


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        if not fault("sum-not-mean"):
            parameter.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data, model = dataset(), network(seed=rank)
    if not fault("no-initial-broadcast"):
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            if fault("clip-before-reduction"):
                clip_grad_norm_(model.parameters(), LIMIT)
                average_gradients(model)
            elif fault("norm-reduced-twice"):
                average_gradients(model)
                square = sum(parameter.grad.square().sum() for parameter in model.parameters())
                dist.all_reduce(square)  # all ranks clip by one norm
                for parameter in model.parameters():
                    parameter.grad *= (LIMIT / square.sqrt()).clamp(max=1)
            else:
                average_gradients(model)
                clip_grad_norm_(model.parameters(), LIMIT)
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note(parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """Each rank has the weights that one process gets from the batches of both."""
    data, model = dataset(), network(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for parts in steps(SAMPLES, BATCH, EPOCHS):
        inputs, targets = data[joint(parts)]
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        clip_grad_norm_(model.parameters(), LIMIT)
        optimizer.step()
    return {"parameters": ended_at(ranks, model)}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
