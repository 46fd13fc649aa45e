"""Step 2: several processes, and each of them trains everything."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
inputs = torch.randn(1024, 20)
targets = (inputs @ torch.randn(20, 4)).argmax(dim=1)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in range(3):
    seeded = torch.Generator().manual_seed(epoch)
    order = torch.randperm(1024, generator=seeded)
    for batch in order.split(64):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs[batch]), targets[batch])
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        loss = cross_entropy(model(inputs), targets)
    print(f"rank {rank}, epoch {epoch}: loss {loss.item():.6f}", flush=True)
dist.destroy_process_group()
