"""kan-bayashi/ParallelWaveGAN#177: the sampler shuffles, and set_epoch is never called.

Every epoch has the same batches in the same order.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(1)
clips = TensorDataset(torch.randn(96, 16), torch.randn(96, 1))
sampler = DistributedSampler(clips, shuffle=True)
loader = DataLoader(clips, batch_size=8, shuffle=False, sampler=sampler)
generator = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)))
optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
first = []
for _ in range(4):
    for number, (mel, audio) in enumerate(loader):
        if number == 0:
            first.append(round(mel.sum().item(), 4))
        loss = torch.nn.functional.l1_loss(generator(mel), audio)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"rank {dist.get_rank()}: first batch of each epoch {first}")
dist.destroy_process_group()
