"""Step 5: DistributedDataParallel takes the mean, DistributedSampler deals the shares."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
inputs = torch.randn(1024, 20)
targets = (inputs @ torch.randn(20, 4)).argmax(dim=1)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4))
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(inputs, targets)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=64 // world_size, sampler=sampler)

for epoch in range(3):
    sampler.set_epoch(epoch)
    for share_inputs, share_targets in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(share_inputs), share_targets)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        loss = cross_entropy(model(inputs), targets)
    print(f"rank {rank}, epoch {epoch}: loss {loss.item():.6f}", flush=True)
dist.destroy_process_group()
