"""cybertronai/transformer-xl#14: the validation loss that is logged and kept as the best is rank 0's own.

The other ranks' parts of the validation set do not count.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(25)
train = TensorDataset(torch.randn(96, 10), torch.randn(96, 1))
valid = TensorDataset(torch.randn(40, 10), torch.randn(40, 1) * torch.arange(1, 3).repeat(20)[:, None])
sampler = DistributedSampler(train)
model = DistributedDataParallel(torch.nn.Linear(10, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
best = float("inf")
for epoch in range(3):
    sampler.set_epoch(epoch)
    model.train()
    for inputs, targets in DataLoader(train, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    total = count = 0
    with torch.no_grad():
        for inputs, targets in DataLoader(valid, batch_size=10, sampler=DistributedSampler(valid, shuffle=False)):
            total += torch.nn.functional.mse_loss(model(inputs), targets, reduction="sum").item()
            count += len(inputs)
    best = min(best, total / count)
    print(f"rank {dist.get_rank()}, epoch {epoch}: loss of this rank {total / count:.4f}")
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: validation loss {total / count:.4f}, best {best:.4f}")
dist.destroy_process_group()
