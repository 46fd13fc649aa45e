"""A job of watch_overhead's, from its first step to its last: how long its steps take, and how much memory.

usage: watch_overhead_job.py KIND [STEPS]

Prints JSON: each step's wall time and the processor's time of all (s), the peak of memory over what there was before the
first step (MiB), and the last loss. lockstep_torch records it where LOCKSTEP_TRACE is set.
"""

import json
import resource
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


class ManyParameters(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.all = nn.ParameterList(torch.randn(4) for _ in range(count))

    def forward(self, inputs):
        return inputs * torch.stack(list(self.all)).sum(0)


def in_memory(inputs):
    while True:
        yield inputs


def from_loader(inputs):
    loader = DataLoader(TensorDataset(inputs), batch_size=8, shuffle=True)
    while True:
        yield from (batch for batch, in loader)


def in_ddp(model, **options):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return DistributedDataParallel(model, **options)


def layers(mib):
    """Of a MiB each 16."""
    return nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(mib // 16)))


KINDS = {  # model, batches, steps
    "tiny-steps": (lambda: nn.Linear(20, 10), lambda: from_loader(torch.randn(1024, 20)), 3000),
    "20,000-parameters": (lambda: ManyParameters(20_000), lambda: in_memory(torch.randn(8, 4)), 64),
    "200-MB-parameter": (lambda: nn.Linear(10_000, 5_000, bias=False), lambda: in_memory(torch.randn(16, 10_000)), 64),
    "memory-alone": (lambda: layers(256), lambda: in_memory(torch.randn(4, 2048)), 7),
    "memory-ddp": (lambda: in_ddp(layers(256)), lambda: in_memory(torch.randn(4, 2048)), 7),
    "memory-bucket-views": (lambda: in_ddp(layers(256), gradient_as_bucket_view=True),
                            lambda: in_memory(torch.randn(4, 2048)), 7)}


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / (1 << 20)


def main(kind, steps=None):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    make, feed, usual = KINDS[kind]
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = feed()
    before, processor, times = resident(), time.process_time(), []
    for _ in range(int(steps or usual)):
        start = time.monotonic()
        inputs = next(batches)
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        times.append(time.monotonic() - start)
    print(json.dumps({"steps": times, "processor_s": time.process_time() - processor,
                      "peak_mib": peak() - before, "loss": loss.item().hex()}))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
