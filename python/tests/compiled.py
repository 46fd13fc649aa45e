"""A DDP model under torch.compile. Says how many graphs were made, and where they broke."""

import sys
import tempfile

import torch
import torch._dynamo.testing
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 2)

    def forward(self, inputs):
        return self.linear(inputs).relu()


with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    torch.manual_seed(0)
    ddp = DistributedDataParallel(Net())
    backend = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(ddp, backend=backend)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = compiled(torch.ones(4, 8)).sum()
        loss.backward()
        optimizer.step()
    breaks = torch._dynamo.utils.counters["graph_break"]
    sys.stdout.write(f"loss {loss.item().hex()}, graphs {backend.frame_count}, breaks {sum(breaks.values())}\n")
    dist.destroy_process_group()
