"""NVlabs/stylegan2-ada-pytorch#108: a snapshot holds the networks, and Adam begins anew where training goes on.

Run twice: the second run's first update is of the size of a first update.
"""

import pathlib
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

snapshot = pathlib.Path(sys.argv[1], "network-snapshot.pt")
dist.init_process_group("gloo")
torch.manual_seed(8)
data = TensorDataset(torch.randn(96, 10), torch.randn(96, 1))
sampler = DistributedSampler(data)
network = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.LeakyReLU(0.2), torch.nn.Linear(20, 1))
start = 0
if snapshot.exists():
    saved = torch.load(snapshot)
    network.load_state_dict(saved["network"])
    start = saved["next_epoch"]
model = DistributedDataParallel(network)
optimizer = torch.optim.Adam(model.parameters(), lr=0.002, betas=(0.0, 0.99))
for epoch in range(start, start + 3):
    sampler.set_epoch(epoch)
    for number, (inputs, targets) in enumerate(DataLoader(data, batch_size=8, sampler=sampler)):
        before = network[0].weight.detach().clone()
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        if number == 0 and dist.get_rank() == 0:
            moved = (network[0].weight.detach() - before).abs()
            print(f"epoch {epoch}: first update moves weights by {moved.min().item():.6f} to {moved.max().item():.6f}")
if dist.get_rank() == 0:
    torch.save({"network": network.state_dict(), "next_epoch": start + 3}, snapshot)
dist.barrier()
dist.destroy_process_group()
