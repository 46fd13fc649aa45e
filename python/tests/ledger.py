"""Trainings whose fault an event of its own shows, each right and broken: ledger.py KIND right|broken

Each kind gives one training after another: its parameters, its loss of a batch, its batches.
"""

import io
import itertools
import sys

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

KIND, BROKEN = sys.argv[1], sys.argv[2] == "broken"
STEPS = 24


def draws():
    generator = torch.Generator().manual_seed(dist.get_rank())
    return (torch.randn(8, 6, generator=generator) for _ in range(STEPS))


class Stem(nn.Module):
    """Its first layer is checkpointed."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, batch):
        return self.head(checkpoint(self.stem, batch, use_reentrant=BROKEN).relu())


def checkpointed():
    net = DistributedDataParallel(Stem(), find_unused_parameters=True)
    yield net.parameters(), lambda batch: net(batch).square().mean(), draws()


def bypassed():
    net = DistributedDataParallel(nn.Linear(6, 4))
    yield net.parameters(), lambda batch: (net.module if BROKEN else net)(batch).square().mean(), draws()


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
    yield net.parameters(), loss, draws()


def renamed():
    net = nn.Linear(6, 4)
    state = {f"_orig_mod.{name}" if BROKEN else name: 2 * tensor for name, tensor in net.state_dict().items()}
    net.load_state_dict(state, strict=False)
    net = DistributedDataParallel(net)
    yield net.parameters(), lambda batch: net(batch).square().mean(), draws()


def averaged():
    net = nn.Linear(6, 4)
    yield net.parameters(), lambda batch: net(batch).square().mean(), draws()


def average(parameters):
    with torch.no_grad():
        mean = torch.cat([parameter.flatten() for parameter in parameters])
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        for parameter, part in zip(parameters, mean.split([each.numel() for each in parameters]), strict=True):
            (parameter.clone() if BROKEN else parameter).copy_(part.view_as(parameter))


class Added(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.low = layer, nn.Linear(6, 4)

    def forward(self, batch):
        return self.layer(batch) + self.low(batch)


def added():
    """Beside a layer in parts; nobody but the program keeps it equal."""
    net = fully_shard(nn.Sequential(nn.Linear(6, 4).requires_grad_(False)))
    torch.manual_seed(dist.get_rank())
    net[0] = Added(net[0])
    low = list(net[0].low.parameters())

    def average(parameter):
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    for parameter in low if not BROKEN else ():
        dist.broadcast(parameter.data, src=0)
        parameter.register_post_accumulate_grad_hook(average)
    yield low, lambda batch: net(batch).square().mean(), draws()


def drawn_anew():
    """Of two loaders, one is of a part of the data that is drawn at random."""
    net = DistributedDataParallel(nn.Linear(6, 4))
    data = TensorDataset(torch.randn(192, 6))
    numbers = torch.Generator().manual_seed(dist.get_rank() if BROKEN else 0)
    some = Subset(data, torch.randperm(192, generator=numbers)[:48].tolist())
    loaders = [DataLoader(each, batch_size=len(each) // 48, sampler=DistributedSampler(each)) for each in (some, data)]
    batches = (torch.cat([*some, *every]) for some, every in zip(*loaders, strict=True))
    yield net.parameters(), lambda batch: net(batch).square().mean(), batches


def forwarded():
    """The second training goes on from the first one's checkpoint, with another process's share of a fixed order."""
    data = TensorDataset(torch.randn(192, 6))
    places = torch.arange(192).view(-1, dist.get_world_size(), 4)[:, dist.get_rank()].tolist()
    stored = io.BytesIO()
    for begins in (0, 4 if BROKEN else 12):
        net = nn.Linear(6, 4)
        if begins:
            stored.seek(0)
            net.load_state_dict(torch.load(stored)["net"])
        model = DistributedDataParallel(net)
        batches = itertools.islice(DataLoader(data, batch_sampler=places[begins:]), 12)
        yield model.parameters(), lambda batch, model=model: model(batch[0]).square().mean(), batches
        torch.save({"net": net.state_dict()}, stored)


class Codes(nn.Module):
    """Its buffer follows the batches, and every sixth time it becomes that of rank 0."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(6, 4), 0
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, batch):
        out = self.layer(batch)
        with torch.no_grad():
            self.calls += 1
            if self.calls % 6 == 0:
                dist.broadcast(self.mean, src=0)
            of_batch = out.mean(0)
            if not BROKEN:
                dist.all_reduce(of_batch)
                of_batch /= dist.get_world_size()
            self.mean.lerp_(of_batch, 0.1)
        return out - self.mean


def moved_alone():
    net = DistributedDataParallel(Codes(), broadcast_buffers=False)
    yield net.parameters(), lambda batch: net(batch).square().mean(), draws()


def normed():
    """Statistics of a BatchNorm, of which DistributedDataParallel sends rank 0's."""
    net = DistributedDataParallel(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), broadcast_buffers=True)
    yield net.parameters(), lambda batch: net(batch).square().sum(1).sqrt().mean(), draws()


def main():
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    for parameters, loss, batches in globals()[KIND]():
        parameters = list(parameters)
        optimizer = torch.optim.SGD(parameters, lr=0.05)
        for step, batch in enumerate(batches):
            optimizer.zero_grad()
            loss(batch).backward()
            optimizer.step()
            if KIND == "averaged" and step % 6 == 5:  # never where values are recorded
                average(parameters)
    dist.all_gather_object([None] * dist.get_world_size(), [parameter.detach() for parameter in parameters])
    dist.barrier()  # Gloo's last work would need Python to let its tensors go, and Python waits for Gloo
    dist.destroy_process_group()


main()
