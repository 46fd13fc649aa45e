"""Batch normalisation over the batches of all ranks, by hand: torch's SyncBatchNorm takes tensors on GPUs only."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import ended_at, joint, steps
from torch import nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, BATCH, EPOCHS, LR = 64, 4, 3, 0.1


class SyncedBatchNorm(nn.BatchNorm1d):
    def forward(self, inputs):
        if not self.training:
            return super().forward(inputs)
        sums = all_reduce(torch.stack([inputs.sum(0), (inputs * inputs).sum(0)]))
        mean, square = sums / (len(inputs) * dist.get_world_size())
        variance = square - mean * mean
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance, self.momentum)
        return (inputs - mean) / (variance + self.eps).sqrt() * self.weight + self.bias


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 12, generator=generator)
    return TensorDataset(inputs, (inputs[:, 0] > inputs[:, 1]).long())


def network(norm):
    torch.manual_seed(9)
    return nn.Sequential(nn.Linear(12, 16), norm(16), nn.ReLU(), nn.Linear(16, 2))


def main():
    dist.init_process_group("gloo")
    data = dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    if fault("local-batch-norm"):
        model = DDP(network(nn.BatchNorm1d))
    elif fault("sync-bn-after-wrapping"):
        model = DDP(network(nn.BatchNorm1d), find_unused_parameters=True)
        model.module[1] = SyncedBatchNorm(16)
    else:
        model = DDP(network(SyncedBatchNorm))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note(parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """Each rank has the weights that one process gets with batches as large as those of all ranks together."""
    data, model = dataset(), network(nn.BatchNorm1d)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for parts in steps(SAMPLES, BATCH, EPOCHS):
        inputs, targets = data[joint(parts)]
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return {"parameters": ended_at(ranks, model, 1e-3)}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
