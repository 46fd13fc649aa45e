"""Batch normalisation over the rows of all ranks, by hand; rows without a label are left out before it."""

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

SAMPLES, BATCH, EPOCHS, LR = 128, 16, 3, 0.1


def mean_of_all(rows):
    """The mean of a column over the rows of all ranks."""
    if fault("unequal-counts-in-sync"):
        return all_reduce(rows.mean(0)) / dist.get_world_size()
    else:
        count = torch.tensor([float(len(rows))])
        dist.all_reduce(count)
        return all_reduce(rows.sum(0)) / count


class SyncedBatchNorm(nn.BatchNorm1d):
    def forward(self, inputs):
        if not self.training:
            return super().forward(inputs)
        mean = mean_of_all(inputs)
        variance = mean_of_all((inputs - mean) ** 2)
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance, self.momentum)
        return (inputs - mean) / (variance + self.eps).sqrt() * self.weight + self.bias


def dataset():
    """A third of the samples has no label: -1."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 12, generator=generator)
    labels = (inputs[:, 0] > inputs[:, 1]).long()
    labels[torch.rand(SAMPLES, generator=generator) < 0.35] = -1
    return TensorDataset(inputs, labels)


def network(norm):
    torch.manual_seed(9)
    return nn.Sequential(nn.Linear(12, 16), norm(16), nn.ReLU(), nn.Linear(16, 2))


def main():
    dist.init_process_group("gloo")
    data = dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    model = DDP(network(SyncedBatchNorm))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            inputs, labels = inputs[labels >= 0], labels[labels >= 0]
            count = torch.tensor(float(len(labels)))
            dist.all_reduce(count)
            optimizer.zero_grad()
            # DDP divides by the number of ranks
            loss = F.cross_entropy(model(inputs), labels, reduction="sum") * dist.get_world_size() / count
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note(parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """Each rank has the weights that one process gets with the rows of all ranks in one batch."""
    data, model = dataset(), network(nn.BatchNorm1d)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for parts in steps(SAMPLES, BATCH, EPOCHS):
        inputs, labels = data[joint(parts)]
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[labels >= 0]), labels[labels >= 0]).backward()
        optimizer.step()
    return {"parameters": ended_at(ranks, model, 1e-3)}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
