"""huggingface/pytorch-image-models#110: apex's wrapper reduces gradients and never copies BatchNorm's buffers.

Each rank validates the same images with its own running statistics. (apex's wrapper is written out here.)
"""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(6)
train = TensorDataset(torch.randn(128, 10) * torch.linspace(1, 3, 128)[:, None], torch.randint(0, 4, (128,)))
images, labels = torch.randn(32, 10), torch.randint(0, 4, (32,))
model = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
for parameter in model.parameters():
    dist.broadcast(parameter.data, 0)
sampler = DistributedSampler(train)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for epoch in range(3):
    sampler.set_epoch(epoch)
    model.train()
    for inputs, targets in DataLoader(train, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(images), labels)
    print(f"rank {dist.get_rank()}, epoch {epoch}: validation loss {loss.item():.5f}")
dist.destroy_process_group()
