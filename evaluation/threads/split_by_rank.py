"""TensorAuto/OpenTau#498: the seed is offset by the rank, and then every rank splits the data by random_split.

The ranks have other training sets, and one validates on what another trains on.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1234)
frames = TensorDataset(torch.randn(100, 8), torch.randn(100, 2))
torch.manual_seed(1234 + rank * 12345)  # augmentations are to differ by rank
train, validation = random_split(frames, [80, 20])
sampler = DistributedSampler(train)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for state, action in DataLoader(train, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(state), action).backward()
        optimizer.step()
everyone = [None, None]
dist.all_gather_object(everyone, (set(train.indices), set(validation.indices)))
if rank == 0:
    print(f"{len(everyone[0][1] & everyone[1][0])} of 20 validation frames of rank 0 are training frames of rank 1")
dist.destroy_process_group()
