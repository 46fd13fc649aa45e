"""PatrickHua/SimSiam#16: the loader shuffles and has no DistributedSampler.

Each epoch has every image once on each rank.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(3)
images = TensorDataset(torch.arange(64), torch.randn(64, 16))
loader = DataLoader(images, batch_size=8, shuffle=True, drop_last=True)
encoder = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
model = DistributedDataParallel(encoder)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for epoch in range(2):
    seen = set()
    for ids, batch in loader:
        seen.update(ids.tolist())
        views = model(torch.cat([batch + 0.1 * torch.randn_like(batch), batch + 0.1 * torch.randn_like(batch)]))
        one, other = views.chunk(2)
        loss = -torch.nn.functional.cosine_similarity(one, other.detach()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"rank {dist.get_rank()}, epoch {epoch}: {len(seen)} of {len(images)} images, {len(loader)} steps")
dist.destroy_process_group()
