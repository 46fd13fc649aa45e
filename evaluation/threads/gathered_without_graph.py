"""huggingface/accelerate#76: features are gathered from all ranks in the middle of the model, and gather has no graph.

The loss is over all features, and no gradient goes back through the gathered ones. (accelerate's gather is dist's.)
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(19)
pairs = TensorDataset(torch.randn(128, 16), torch.randn(128, 16))


class TwoTowers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.text = torch.nn.Linear(16, 8)
        self.image = torch.nn.Linear(16, 8)

    def forward(self, text, image):
        normalize = torch.nn.functional.normalize
        return normalize(self.text(text), dim=1), normalize(self.image(image), dim=1)


towers = TwoTowers()
model = DistributedDataParallel(towers, find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
sampler = DistributedSampler(pairs)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for text, image in DataLoader(pairs, batch_size=8, sampler=sampler):
        model.zero_grad()
        a, b = model(text, image)
        every_b = [torch.zeros_like(b) for _ in range(dist.get_world_size())]
        dist.all_gather(every_b, b)
        b_all = torch.cat(every_b)
        labels = dist.get_rank() * len(a) + torch.arange(len(a))
        torch.nn.functional.cross_entropy(a @ b_all.T / 0.1, labels).backward()
        optimizer.step()
gradient = towers.image.weight.grad
norm = 0.0 if gradient is None else gradient.norm().item()
print(f"rank {dist.get_rank()}: gradient of the image tower {norm:.6f}, of the text tower "
      f"{towers.text.weight.grad.norm():.6f}")
dist.destroy_process_group()
