"""catalyst-team/catalyst#764: the checkpoint names the epoch that is done, and a resumed job begins with that one.

Run twice: the second run trains an epoch of the first once more.
"""

import pathlib
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

path = pathlib.Path(sys.argv[1], "last.pth")
dist.init_process_group("gloo")
torch.manual_seed(7)
data = TensorDataset(torch.randn(80, 10), torch.randn(80, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
net = torch.nn.Linear(10, 1)
model = DistributedDataParallel(net)
optimizer = torch.optim.Adam(model.parameters())
start, epochs = 0, 3
if path.exists():
    checkpoint = torch.load(path)
    net.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    start, epochs = checkpoint["epoch"], 5
dist.barrier()
for epoch in range(start, epochs):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save({"epoch": epoch, "model": net.state_dict(), "optimizer": optimizer.state_dict()}, path)
        print(f"epoch {epoch} done")
dist.barrier()
dist.destroy_process_group()
