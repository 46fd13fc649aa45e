"""A learning-rate finder before the training: it raises the rate, then puts model and optimizer back."""

import copy

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def find_rate(model, optimizer, loader, low=1e-4, high=1.0):
    before = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    losses, rates, rate = [], [], low
    for x, y in loader:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        shared = loss.detach().clone()
        dist.all_reduce(shared)  # all ranks choose alike
        losses.append(shared.item())
        rates.append(rate)
        rate *= (high / low) ** (1 / len(loader))
    model.load_state_dict(before[0])
    optimizer.load_state_dict(before[1])
    return min(rates[losses.index(min(losses))] / 2, 0.05)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(160, 20), torch.randn(160, 1))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    rate = find_rate(model, optimizer, loader)
    for group in optimizer.param_groups:
        group["lr"] = rate
    for epoch in range(1, 4):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
