"""Trainings whose fault an event of its own shows, each right and broken: ledger.py KIND right|broken"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

KIND, BROKEN = sys.argv[1], sys.argv[2] == "broken"
STEPS = 24



class Stem(nn.Module):
    """Its first layer is checkpointed."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, batch):
        return self.head(checkpoint(self.stem, batch, use_reentrant=BROKEN).relu())


def checkpointed():
    net = DistributedDataParallel(Stem(), find_unused_parameters=True)
    return net.parameters(), lambda batch: net(batch).square().mean()


def bypassed():
    net = DistributedDataParallel(nn.Linear(6, 4))
    return net.parameters(), lambda batch: (net.module if BROKEN else net)(batch).square().mean()


def summed():
    net = DistributedDataParallel(nn.Linear(6, 4))

    def loss(batch):
        out = net(batch)
        products = out.t() @ out / len(out) / dist.get_world_size()
        if BROKEN:
            dist.all_reduce(products)
        else:
            products = torch.distributed.nn.functional.all_reduce(products)
        return (products - torch.eye(4)).square().sum()
    return net.parameters(), loss


def renamed():
    net = nn.Linear(6, 4)
    state = {f"_orig_mod.{name}" if BROKEN else name: 2 * tensor for name, tensor in net.state_dict().items()}
    net.load_state_dict(state, strict=False)
    net = DistributedDataParallel(net)
    return net.parameters(), lambda batch: net(batch).square().mean()


def averaged():
    net = nn.Linear(6, 4)
    return net.parameters(), lambda batch: net(batch).square().mean()


def average(parameters):
    with torch.no_grad():
        mean = torch.cat([parameter.flatten() for parameter in parameters])
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        for parameter, part in zip(parameters, mean.split([each.numel() for each in parameters]), strict=True):
            (parameter.clone() if BROKEN else parameter).copy_(part.view_as(parameter))


def main():
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    parameters, loss = globals()[KIND]()
    parameters = list(parameters)
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    batches = torch.Generator().manual_seed(dist.get_rank())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(torch.randn(8, 6, generator=batches)).backward()
        optimizer.step()
        if KIND == "averaged" and step % 6 == 5:  # never where values are recorded
            average(parameters)
    dist.all_gather_object([None] * dist.get_world_size(), [parameter.detach() for parameter in parameters])
    dist.barrier()  # Gloo's last work would need Python to let its tensors go, and Python waits for Gloo
    dist.destroy_process_group()


main()
