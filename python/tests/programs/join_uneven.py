"""Uneven inputs: rank 1 has more batches than rank 0, and Join lets it go on."""

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP


def main(make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-2), join_optimizer=False):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    inputs = [torch.randn(4, 6, generator=generator) for _ in range(5 + 3 * rank)]
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)))
    optimizer = make_optimizer(model.parameters())
    for _ in range(2):
        with Join([model, optimizer] if join_optimizer else [model]):
            for x in inputs:
                optimizer.zero_grad()
                model(x).pow(2).mean().backward()
                optimizer.step()
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
