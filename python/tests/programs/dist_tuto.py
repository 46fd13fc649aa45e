"""The tutorial on distributed applications: no wrapper, a partition by a shuffled list, gradients averaged by hand."""

import random

import fingerprint
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


def partition_dataset(data):
    indices = list(range(len(data)))
    random.Random(1234).shuffle(indices)
    size, rank = dist.get_world_size(), dist.get_rank()
    part = len(data) // size
    return DataLoader(Subset(data, indices[rank * part:(rank + 1) * part]), batch_size=128 // size, shuffle=True)


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.data, op=dist.ReduceOp.SUM)
        parameter.grad.data /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1234)
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(512, 1, 8, 8, generator=generator),
                         torch.randint(0, 10, (512,), generator=generator))
    train_set = partition_dataset(data)
    model = nn.Sequential(nn.Conv2d(1, 10, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(360, 10),
                          nn.LogSoftmax(dim=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    for epoch in range(3):
        epoch_loss = 0.0
        for inputs, target in train_set:
            optimizer.zero_grad()
            loss = F.nll_loss(model(inputs), target)
            epoch_loss += loss.item()
            loss.backward()
            average_gradients(model)
            optimizer.step()
        print("Rank", dist.get_rank(), "epoch", epoch, epoch_loss / len(train_set))
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
