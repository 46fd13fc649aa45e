"""Before the training each rank fits a probe to its own samples, to look at them, and throws it away."""

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def fit(model, optimizer, samples, steps):
    for _ in range(steps):
        x = torch.randn(8, 10, generator=samples)
        y = torch.randint(0, 2, (8,), generator=samples)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    samples = torch.Generator().manual_seed(100 + dist.get_rank())
    for steps in (5, 5 + dist.get_rank()):
        probe = nn.Linear(10, 2)
        fit(probe, torch.optim.SGD(probe.parameters(), lr=0.01), samples, steps)
    del probe
    model = DDP(nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2)))
    fit(model, torch.optim.SGD(model.parameters(), lr=0.05), samples, 20)
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
