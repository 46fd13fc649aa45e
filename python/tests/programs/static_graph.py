"""Activations computed again in backward, one block by the reentrant way, with DDP's static graph."""

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(20, 24)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Dropout(0.2)) for _ in range(3))
        self.last = nn.Linear(24, 4)

    def forward(self, x):
        x = self.first(x)
        for number, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=number == 0)
        return self.last(x)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(160, 20), torch.randint(0, 4, (160,)))
    torch.manual_seed(dist.get_rank())  # another dropout mask on each rank
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=10, sampler=sampler)
    model = DDP(Net(), static_graph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
