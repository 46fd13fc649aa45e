"""Each rank takes its part of a shuffled split, in the split's order, which is the same in every epoch."""

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(200, 10), torch.randn(200, 1))
    training, validation = random_split(data, [160, 40])
    mine = Subset(training, range(dist.get_rank(), len(training), dist.get_world_size()))
    model = DDP(nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        model.train()
        for x, y in DataLoader(mine, batch_size=8):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, y in DataLoader(validation, batch_size=20):
                nn.functional.mse_loss(model(x), y)
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
