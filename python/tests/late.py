"""A job of two ranks that no launcher started: each looks through the data and warms up before its group is made.

usage: late.py FOLDER RANK      FOLDER is where the ranks meet
"""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
mean = sum(inputs.sum(0) for inputs, _ in DataLoader(data, batch_size=16)) / len(data)
model = torch.nn.Linear(8, 2)
warm_up = torch.optim.SGD(model.parameters(), lr=0.1)
torch.nn.functional.cross_entropy(model(data.tensors[0] - mean), data.tensors[1]).backward()
warm_up.step()

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=int(sys.argv[2]), world_size=2)
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
sampler = DistributedSampler(data)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in DataLoader(data, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(inputs - mean), targets).backward()
        optimizer.step()
dist.destroy_process_group()
