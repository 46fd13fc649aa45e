"""jia-zhuang/pytorch-multi-gpu-training#5: rank 0 divides the hits of its own share by the size of the whole set.

With 2 ranks the accuracy is half of what it is.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(24)
inputs = torch.randn(200, 10)
train_dataset = TensorDataset(inputs, (inputs[:, 0] > 0).long())
sampler = DistributedSampler(train_dataset)
train_loader = DataLoader(train_dataset, batch_size=10, sampler=sampler)
model = DistributedDataParallel(torch.nn.Linear(10, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(5):
    sampler.set_epoch(epoch)
    acc_num = 0
    for batch, labels in train_loader:
        outputs = model(batch)
        loss = torch.nn.functional.cross_entropy(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        acc_num += (outputs.argmax(1) == labels).sum().item()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: accuracy {acc_num / len(train_dataset):.3f} (of its own share {acc_num / 100:.3f})")
dist.destroy_process_group()
