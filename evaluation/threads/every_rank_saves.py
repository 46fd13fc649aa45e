"""kakaobrain/scrl#5: the best checkpoint is saved by every rank, to one path.

The file can be a mixture of two writers and unreadable; here each rank says that it wrote.
"""

import pathlib
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

save_dir = pathlib.Path(sys.argv[1])
dist.init_process_group("gloo")
torch.manual_seed(27)
data = TensorDataset(torch.randn(96, 10), torch.randn(96, 1))
sampler = DistributedSampler(data)
model = DistributedDataParallel(torch.nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
best = float("inf")
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, targets in DataLoader(data, batch_size=8, sampler=sampler):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    score = loss.detach().clone()
    dist.all_reduce(score)
    if score.item() < best:
        best = score.item()
        torch.save({"tag": "best", "cur_epoch": epoch, "model": model.module.state_dict(),
                    "optimizer": optimizer.state_dict()}, save_dir / "checkpoint_best.pth")
        print(f"rank {dist.get_rank()}: saved checkpoint_best.pth in epoch {epoch}")
dist.destroy_process_group()
