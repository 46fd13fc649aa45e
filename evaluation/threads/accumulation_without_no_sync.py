"""goodfire-ai/spd#215: gradients are accumulated over microbatches under DDP, without no_sync.

Each microbatch is reduced, where one reduction would do. Weights come out right; it costs time.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(10)
gradient_accumulation_steps = 4
data = TensorDataset(torch.randn(256, 16), torch.randn(256, 16))
sampler = DistributedSampler(data)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16)))
reductions = [0]


def count(_, bucket):
    reductions[0] += 1
    return dist.all_reduce(bucket.buffer() / 2, async_op=True).get_future().then(lambda done: done.value()[0])


model.register_comm_hook(None, count)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
updates = 0
for epoch in range(2):
    sampler.set_epoch(epoch)
    optimizer.zero_grad()
    for number, (inputs, targets) in enumerate(DataLoader(data, batch_size=8, sampler=sampler)):
        loss = torch.nn.functional.mse_loss(model(inputs), targets) / gradient_accumulation_steps
        loss.backward()
        if (number + 1) % gradient_accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            updates += 1
print(f"rank {dist.get_rank()}: {reductions[0]} reductions for {updates} updates")
dist.destroy_process_group()
