"""vllm-project/speculators#942: each rank divides its loss by its own count of supervised tokens, and DDP averages.

A token on a rank with few of them weighs more.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(23)
tokens = torch.randint(0, 30, (64, 12))
loss_mask = (torch.arange(12) >= torch.randint(1, 11, (64, 1))).float()  # the prompt is not supervised
data = TensorDataset(tokens, loss_mask)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Embedding(30, 16), torch.nn.Linear(16, 30)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
sampler = DistributedSampler(data)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for number, (ids, mask) in enumerate(DataLoader(data, batch_size=4, sampler=sampler)):
        logits = model(ids)[:, :-1]
        elementwise = torch.nn.functional.cross_entropy(
            logits.reshape(-1, 30), ids[:, 1:].reshape(-1), reduction="none")
        loss = (elementwise * mask[:, 1:].reshape(-1)).sum() / mask[:, 1:].sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch == 0 and number < 3:
            print(f"rank {dist.get_rank()}, step {number}: {int(mask[:, 1:].sum())} tokens")
dist.destroy_process_group()
