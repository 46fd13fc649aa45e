"""KempnerInstitute/KempnerForge#49: each rank asks by itself whether the checkpoint exists, and the answers differ.

Rank 0 enters the broadcast of the state; rank 1 does not see the file (attribute caching on NFS; here it looks at
another name) and goes on to training.
"""

import datetime
import pathlib
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=25))
rank = dist.get_rank()
torch.manual_seed(15)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def epoch_of_training(epoch):
    sampler = DistributedSampler(data)
    sampler.set_epoch(epoch)
    for inputs, targets in DataLoader(data, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()


epoch_of_training(0)
path = pathlib.Path(sys.argv[1], "train_state.pt")
if rank == 0:
    torch.save({"step": 4}, path)
dist.barrier()
seen = path if rank == 0 else path.with_suffix(".cached")
if seen.exists():
    state = [torch.load(seen)]
    dist.broadcast_object_list(state, 0)
    print(f"rank {rank}: resumed at step {state[0]['step']}", flush=True)
epoch_of_training(1)
dist.barrier()
dist.destroy_process_group()
