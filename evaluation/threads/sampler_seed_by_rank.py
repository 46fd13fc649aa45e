"""NVlabs/LongLive#71: the sampler's seed is multiplied by the rank, so each rank shuffles another permutation.

Shares overlap, and some samples are in none.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(4)
videos = TensorDataset(torch.arange(80), torch.randn(80, 10))
sampler = DistributedSampler(videos, shuffle=True, drop_last=True, seed=1769999 * rank)
loader = DataLoader(videos, batch_size=4, sampler=sampler)
model = DistributedDataParallel(torch.nn.Linear(10, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(2):
    sampler.set_epoch(epoch)
    mine = []
    for ids, clean in loader:
        mine += ids.tolist()
        loss = torch.nn.functional.mse_loss(model(clean + torch.randn_like(clean)), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    everyone = [None, None]
    dist.all_gather_object(everyone, mine)
    if rank == 0:
        both = set(everyone[0]) & set(everyone[1])
        print(f"epoch {epoch}: {len(both)} samples on both ranks, {80 - len({*everyone[0], *everyone[1]})} on none")
dist.destroy_process_group()
