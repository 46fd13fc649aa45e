"""Contrastive learning: the negatives of a sample are the samples of all ranks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import ended_at, joint, steps
from torch import nn
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, BATCH, EPOCHS, LR = 64, 8, 4, 0.1


def dataset():
    """Two views of each sample."""
    generator = torch.Generator().manual_seed(1)
    one = torch.randn(SAMPLES, 12, generator=generator)
    return TensorDataset(one, one + 0.3 * torch.randn(SAMPLES, 12, generator=generator))


def network():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 6))


def gather(features):
    if fault("gather-loses-graph"):
        everyones = [torch.empty_like(features) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, features.detach())
        everyones[dist.get_rank()] = features
    else:
        everyones = all_gather(features)
    return torch.cat(list(everyones))


def main():
    dist.init_process_group("gloo")
    rank, data = dist.get_rank(), dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for one, other in loader:
            optimizer.zero_grad()
            features = F.normalize(model(torch.cat([one, other])), dim=1)
            first, second = features.chunk(2)
            logits = first @ gather(second).T / 0.1
            loss = F.cross_entropy(logits, torch.arange(len(one)) + rank * BATCH)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note(parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """Each rank has the weights that one process gets from the whole batch, all of it negatives."""
    data, model = dataset(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for parts in steps(SAMPLES, BATCH, EPOCHS):
        one, other = data[joint(parts)]
        optimizer.zero_grad()
        first, second = F.normalize(model(torch.cat([one, other])), dim=1).chunk(2)
        F.cross_entropy(first @ second.T / 0.1, torch.arange(len(one))).backward()
        optimizer.step()
    return {"parameters": ended_at(ranks, model)}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
