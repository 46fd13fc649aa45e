"""huggingface/diffusers#3954: accelerate steps the schedule once for each process, and its length is not multiplied.

On 2 ranks the cosine reaches zero in the middle of the run and rises again. (accelerate's loop is written out here.)
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(9)
data = TensorDataset(torch.randn(160, 8))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
max_train_steps = 4 * len(loader)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max_train_steps)
rates = []
for epoch in range(4):
    sampler.set_epoch(epoch)
    for (latents,) in loader:
        noise = torch.randn_like(latents)
        torch.nn.functional.mse_loss(model(latents + noise), noise).backward()
        optimizer.step()
        for _ in range(dist.get_world_size()):
            lr_scheduler.step()
        optimizer.zero_grad()
        rates.append(lr_scheduler.get_last_lr()[0])
if dist.get_rank() == 0:
    print(f"rate after a half: {rates[len(rates) // 2 - 1]:.6f}, at the end: {rates[-1]:.6f}")
dist.destroy_process_group()
