"""pytorch/audio#3749: where the loss is not finite, a rank returns before the all_gather of the frame counts.

The other ranks wait in it.
"""

import datetime

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=25))
torch.manual_seed(14)
frames = torch.randn(96, 8)
frames[37] = float("inf")  # one broken recording
audio = TensorDataset(frames, torch.randint(0, 4, (96,)))
model = DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def training_step(inputs, targets):
    loss = torch.nn.functional.cross_entropy(model(inputs), targets, reduction="sum")
    if torch.isinf(loss) or torch.isnan(loss):
        print(f"rank {dist.get_rank()}: no update, the loss is not finite", flush=True)
        return
    counts = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor([float(len(inputs))]))
    (loss * dist.get_world_size() / sum(counts).item()).backward()
    optimizer.step()
    optimizer.zero_grad()


for _ in range(2):
    for batch in DataLoader(audio, batch_size=8, sampler=DistributedSampler(audio, shuffle=False)):
        training_step(*batch)
dist.barrier()
dist.destroy_process_group()
