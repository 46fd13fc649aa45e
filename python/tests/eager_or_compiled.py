"""A DDP job whose model runs as it is written, or through torch.compile: eager_or_compiled.py eager|compiled"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
inputs = torch.randn(256, 16)
labels = (inputs[:, 0] > 0).long() + 2 * (inputs[:, 1] > 0).long()
net = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
ddp = DistributedDataParallel(torch.compile(net) if sys.argv[1] == "compiled" else net)
optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
for step in range(12):
    mine = torch.arange(16 * step + rank, 16 * (step + 1), world_size)
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(inputs[mine]), labels[mine]).backward()
    optimizer.step()
dist.destroy_process_group()
