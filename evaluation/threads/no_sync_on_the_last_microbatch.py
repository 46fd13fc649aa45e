"""modelscope/FunASR#3472: the condition for no_sync is off by one against the condition for the update.

The first microbatch of a window is reduced and the one before the update is not, so each rank updates by its own sum.
"""

import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(12)
accum_grad = 2
data = TensorDataset(torch.randn(192, 12), torch.randn(192, 1))
sampler = DistributedSampler(data)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.ReLU(), torch.nn.Linear(24, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for batch_idx, (inputs, targets) in enumerate(DataLoader(data, batch_size=8, sampler=sampler)):
        context = contextlib.nullcontext if batch_idx % accum_grad == 0 else model.no_sync
        with context():
            loss = torch.nn.functional.mse_loss(model(inputs), targets) / accum_grad
            loss.backward()
        if (batch_idx + 1) % accum_grad == 0:
            optimizer.step()
            optimizer.zero_grad()
total = sum(parameter.detach().sum() for parameter in model.parameters())
print(f"rank {dist.get_rank()}: sum of all weights {total:.6f}")
dist.destroy_process_group()
