"""Lightning-AI/pytorch-lightning#20340: the backbone is frozen when DDP wraps the model, and thawed two epochs later.

DDP does not know the backbone's parameters, so each rank trains a backbone of its own.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(22)
data = TensorDataset(torch.randn(96, 12), torch.randint(0, 3, (96,)))
backbone = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh())
head = torch.nn.Linear(16, 3)
backbone.requires_grad_(False)
model = DistributedDataParallel(torch.nn.Sequential(backbone, head))
optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
sampler = DistributedSampler(data)
for epoch in range(4):
    sampler.set_epoch(epoch)
    if epoch == 2:
        backbone.requires_grad_(True)
        optimizer.add_param_group({"params": list(backbone.parameters()), "lr": 1e-3})
    for inputs, targets in DataLoader(data, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
weights = [part.weight.detach().double().sum().item() for part in (backbone[0], head)]
print(f"rank {dist.get_rank()}: backbone {weights[0]:.6f}, head {weights[1]:.6f}")
dist.destroy_process_group()
