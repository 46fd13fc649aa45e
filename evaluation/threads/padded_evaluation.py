"""roboflow/rf-detr#1507: the validation loader has a DistributedSampler, which repeats an image to fill up the ranks.

21 images are scored as 22.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(2)
train = TensorDataset(torch.randn(64, 12), torch.randint(0, 3, (64,)))
valid = TensorDataset(torch.randn(21, 12), torch.randint(0, 3, (21,)))
sampler = DistributedSampler(train)
model = DistributedDataParallel(torch.nn.Linear(12, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    model.train()
    for inputs, targets in DataLoader(train, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    hits = []
    with torch.no_grad():
        for inputs, targets in DataLoader(valid, batch_size=4, sampler=DistributedSampler(valid, shuffle=False)):
            hits += (model(inputs).argmax(1) == targets).tolist()
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, hits)
    merged = [hit for part in everyone for hit in part]
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: accuracy {sum(merged) / len(merged):.4f} of {len(merged)} images, not {len(valid)}")
dist.destroy_process_group()
