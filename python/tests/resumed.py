"""A script that goes on from its checkpoint, where its folder has one. Its other arguments are what it forgets; with
`skips` it stops within an epoch, and goes on behind the batches that it was given before.
"""

import pathlib
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

path, FORGETS = pathlib.Path(sys.argv[1], "last.pt"), sys.argv[2:]
dist.init_process_group("gloo")
torch.manual_seed(3)
data = TensorDataset(torch.randn(128, 10), torch.randn(128, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
net = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(20, 1))
optimizer = torch.optim.Adam(net.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
start = skipped = 0
if path.exists():
    stored = torch.load(path)
    net.load_state_dict(stored["net"])
    if "optimizer" not in FORGETS:
        optimizer.load_state_dict(stored["optimizer"])
    if "scheduler" not in FORGETS:
        scheduler.load_state_dict(stored["scheduler"])
    skipped = stored["batches"]
    start = stored["epoch"] + (0 if skipped or "epoch" in FORGETS else 1)
model = DistributedDataParallel(net)
for epoch in range(start, start + 3):
    sampler.set_epoch(epoch)
    for number, (inputs, targets) in enumerate(loader):
        if epoch == start and number < skipped:
            continue
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        if "skips" in FORGETS and epoch == 2 and number == 4:
            break
    scheduler.step()
    if dist.get_rank() == 0:
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(),
                    "epoch": epoch, "batches": 5 if "skips" in FORGETS else 0}, path)
    dist.barrier()
total = sum(parameter.detach().double().sum() for parameter in net.parameters())
sys.stdout.write(f"rank {dist.get_rank()}: {total.item().hex()}\n")
dist.destroy_process_group()
