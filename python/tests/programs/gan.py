"""Two models, each in its own DDP with its own optimizer: a generator and what judges it."""

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(160, 12))
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=10, sampler=sampler, drop_last=True)
    judge = DDP(nn.Sequential(nn.Linear(12, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1)))
    maker = DDP(nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 12)))
    torch.manual_seed(1000 + dist.get_rank())  # each rank's own noise
    criterion = nn.BCEWithLogitsLoss()
    judges = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.5, 0.999))
    makers = torch.optim.Adam(maker.parameters(), lr=2e-3, betas=(0.5, 0.999))
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (real,) in loader:
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            judge.zero_grad()
            criterion(judge(real), ones).backward()
            fake = maker(torch.randn(len(real), 6))
            criterion(judge(fake.detach()), zeros).backward()
            judges.step()
            maker.zero_grad()
            criterion(judge(fake), ones).backward()
            makers.step()
    fingerprint.say(judge, maker)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
