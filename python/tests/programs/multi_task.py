"""Two heads and two losses, weighed by what is learned; each group of parameters has its own schedule."""

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(20, 32), nn.ReLU())
        self.kind, self.size = nn.Linear(32, 4), nn.Linear(32, 1)
        self.weights = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        features = self.trunk(x)
        return self.kind(features), self.size(features).squeeze(1), self.weights


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(160, 20), torch.randint(0, 4, (160,)), torch.randn(160))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=10, sampler=sampler)
    model = DDP(Net())
    net = model.module
    optimizer = torch.optim.AdamW([{"params": net.trunk.parameters(), "lr": 1e-3},
                                   {"params": [*net.kind.parameters(), *net.size.parameters()], "lr": 1e-2},
                                   {"params": [net.weights], "lr": 1e-2, "weight_decay": 0.0}])
    schedule = LambdaLR(optimizer, [lambda step: min(1.0, (step + 1) / 10), lambda step: 0.98 ** step, lambda _: 1.0])
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, kind, size in loader:
            optimizer.zero_grad()
            kinds, sizes, weights = model(x)
            losses = torch.stack([nn.functional.cross_entropy(kinds, kind), nn.functional.mse_loss(sizes, size)])
            (losses * torch.exp(-weights) + weights).sum().backward()
            optimizer.step()
            schedule.step()
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
