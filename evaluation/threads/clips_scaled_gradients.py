"""rwth-i6/returnn#1590: with a GradScaler the gradients are clipped before they are unscaled.

After unscaling, their norm is max_norm / scale.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(18)
data = TensorDataset(torch.randn(128, 12), torch.randn(128, 4))
sampler = DistributedSampler(data)
net = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.ReLU(), torch.nn.Linear(24, 4))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
grad_scaler = torch.amp.GradScaler("cpu")
start = net[0].weight.detach().clone()
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, targets in DataLoader(data, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        grad_scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        grad_scaler.step(optimizer)
        grad_scaler.update()
if dist.get_rank() == 0:
    print(f"scale {grad_scaler.get_scale():.0f}; in 24 updates the first layer moved by "
          f"{(net[0].weight.detach() - start).norm():.6f}")
dist.destroy_process_group()
