"""rmchurch/disruptcnn#3: ReduceLROnPlateau gets each rank's own loss, and not the mean that is logged.

Ranks lower their learning rates in other epochs, so their weights part.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(29)
train = TensorDataset(torch.randn(64, 10), torch.randn(64, 1))
valid = TensorDataset(torch.randn(16, 10), torch.randn(16, 1))
sampler = DistributedSampler(train)
model = DistributedDataParallel(torch.nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
lr_scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
for epoch in range(10):
    sampler.set_epoch(epoch)
    model.train()
    for inputs, targets in DataLoader(train, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    total_loss = 0.0
    with torch.no_grad():
        for inputs, targets in DataLoader(valid, batch_size=8, sampler=DistributedSampler(valid, shuffle=False)):
            total_loss += torch.nn.functional.mse_loss(model(inputs), targets).item()
    lr_scheduler.step(total_loss)
    logged = torch.tensor(total_loss)
    dist.all_reduce(logged)
    print(f"rank {dist.get_rank()}, epoch {epoch}: mean loss {logged / 2:.4f}, rate {lr_scheduler.get_last_lr()[0]}")
dist.destroy_process_group()
