"""BatchNorm over the batch of all ranks. torch has it on devices alone: on CPUs its forward raises."""

import os

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(160, 3, 6, 6), torch.randint(0, 4, (160,)))
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=10, sampler=sampler)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)).to(device)
    model = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(net), device_ids=[device.index])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
