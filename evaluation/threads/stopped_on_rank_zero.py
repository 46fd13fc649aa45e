"""talmolab/sleap-nn#471: rank 0 is told to stop, and a barrier does not tell the others.

Rank 0 leaves the loop for the work after it; the others wait for it in the next backward.
"""

import datetime

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=25))
torch.manual_seed(13)
data = TensorDataset(torch.randn(96, 8), torch.randn(96, 2))
sampler = DistributedSampler(data)
model = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters())
should_stop = False
step = 0
for epoch in range(4):
    sampler.set_epoch(epoch)
    for inputs, targets in DataLoader(data, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        step += 1
        if dist.get_rank() == 0 and step == 9:  # the message "stop" has come to rank 0
            should_stop = True
        dist.barrier()
        if should_stop:
            break
    if should_stop:
        break
print(f"rank {dist.get_rank()}: left the loop after step {step}", flush=True)
scores = [None, None]
dist.all_gather_object(scores, step)
dist.destroy_process_group()
