"""dmlc/dgl#2539: the training nodes are cut into a chunk a rank, and one chunk has a batch more.

The rank with the extra batch waits in its backward for the others.
"""

import datetime
import math

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=25))
rank, n_gpus = dist.get_rank(), dist.get_world_size()
torch.manual_seed(17)
features, labels = torch.randn(65, 10), torch.randint(0, 3, (65,))
train_nid = torch.split(torch.randperm(65), math.ceil(65 / n_gpus))[rank]
loader = DataLoader(TensorDataset(train_nid), batch_size=16, shuffle=True, drop_last=False)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(3):
    for (nodes,) in loader:
        loss = torch.nn.functional.cross_entropy(model(features[nodes]), labels[nodes])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"rank {rank}: epoch {epoch}, {len(loader)} batches", flush=True)
dist.barrier()
dist.destroy_process_group()
