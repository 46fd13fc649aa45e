"""What oracles share: the batches of all ranks together, for one process, and whether the ranks ended where it does."""

import torch
from torch.nn.functional import mse_loss
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DistributedSampler
from twin import WORLD


def shares(samples, epoch, shuffle=True):
    """Each rank's samples, in order."""
    dealt = []
    for rank in range(WORLD):
        sampler = DistributedSampler(range(samples), WORLD, rank, shuffle=shuffle)
        sampler.set_epoch(epoch)
        dealt.append(list(sampler))
    return dealt


def steps(samples, batch, epochs):
    """Of each step the samples of all ranks, one list for each rank."""
    for epoch in range(epochs):
        dealt = shares(samples, epoch)
        for begin in range(0, len(dealt[0]), batch):
            yield [ids[begin:begin + batch] for ids in dealt]


def joint(parts):
    return [each for part in parts for each in part]


def ended_at(ranks, model, tolerance=1e-4):
    """Every rank has this model's parameters."""
    expected = parameters_to_vector(model.parameters()).detach()
    return all(torch.allclose(torch.tensor(one["parameters"]), expected, tolerance, tolerance) for one in ranks)


def ended_as_one_process(ranks, data, model, batch, epochs, lr):
    """With the weights that one process gets from the batches of all ranks, by SGD on the mean squared error."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for parts in steps(len(data), batch, epochs):
        inputs, targets = data[joint(parts)]
        optimizer.zero_grad()
        mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return {"parameters": ended_at(ranks, model)}


def equal(ranks, name):
    return all(one[name] == ranks[0][name] for one in ranks)
