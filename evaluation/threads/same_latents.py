"""Lightning-AI/pytorch-lightning#16166: one seed for all ranks, and the GAN's latent vectors are drawn from it.

Every rank's generator gets the same vectors, so two ranks make as many images as one.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(20)
images = TensorDataset(torch.randn(128, 16))
sampler = DistributedSampler(images)
generator = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16)))
critic = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)))
opt_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
bce = torch.nn.functional.binary_cross_entropy_with_logits
drawn = 0.0
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (real,) in DataLoader(images, batch_size=16, sampler=sampler):
        z = torch.randn(len(real), 6)
        drawn += z.sum().item()
        fake = generator(z)
        critic.requires_grad_(False)
        opt_g.zero_grad()
        bce(critic.module(fake), torch.ones(len(real), 1)).backward()
        opt_g.step()
        critic.requires_grad_(True)
        opt_d.zero_grad()
        both = critic(torch.cat([real, fake.detach()]))
        bce(both, torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])).backward()
        opt_d.step()
print(f"rank {dist.get_rank()}: sum of all latents {drawn:.6f}")
dist.destroy_process_group()
