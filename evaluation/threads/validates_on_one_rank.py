"""jpata/particleflow#233: rank 0 alone validates, through the DDP wrapper, and the others wait in a barrier.

The wrapper's forward broadcasts buffers. (BatchNorm stands for the thread's model, which is not shown there.)
"""

import datetime

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=25))
rank = dist.get_rank()
torch.manual_seed(16)
train = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
valid = TensorDataset(torch.randn(40, 8), torch.randn(40, 1))
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
sampler = DistributedSampler(train)
for epoch in range(3):
    sampler.set_epoch(epoch)
    model.train()
    for inputs, targets in DataLoader(train, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    if rank == 0:
        total = 0.0
        for inputs, targets in DataLoader(valid, batch_size=8):
            total += torch.nn.functional.mse_loss(model(inputs), targets).item()
        print(f"epoch {epoch}: validation loss {total / 5:.4f}", flush=True)
    dist.barrier()
dist.destroy_process_group()
