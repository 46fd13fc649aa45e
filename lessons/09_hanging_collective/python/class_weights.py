"""Before it trains, the ranks put together what each knows of its shard: classes, the largest values, the mean."""

import datetime

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import WORLD
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset
from twin import fault, note

SAMPLES, CLASSES = 64, 6


def dataset():
    """Its last class is rare: the shard of rank 1 has none of it."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, CLASSES - 1, (SAMPLES,), generator=generator)
    labels[0] = CLASSES - 1
    return TensorDataset(torch.randn(SAMPLES, 12, generator=generator), labels)


def count_classes(labels, rank):
    if fault("shape-mismatch"):
        counts = torch.bincount(labels)  # as long as the largest label
    else:
        counts = torch.bincount(labels, minlength=CLASSES)
    if fault("dtype-mismatch") and rank == 1:
        counts = counts.double()
    dist.all_reduce(counts)
    return counts


def largest(inputs, rank):
    value = inputs.abs().amax(0)
    if fault("reduce-op-mismatch") and rank == 1:
        dist.all_reduce(value, op=dist.ReduceOp.SUM)
    else:
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    rank, world_size, data = dist.get_rank(), dist.get_world_size(), dataset()
    inputs, labels = Subset(data, range(rank, SAMPLES, world_size))[:]
    mean = inputs.mean(0) if rank == 0 else torch.zeros(12)  # rank 0's estimate is good enough for all
    if fault("order-mismatch") and rank == 1:
        dist.broadcast(mean, src=0)
        counts = count_classes(labels, rank)
    else:
        counts = count_classes(labels, rank)
        dist.broadcast(mean, src=rank if fault("root-mismatch") else 0)
    scale = largest(inputs, rank)
    note_of_setup = {"counts": counts.tolist(), "mean": mean.tolist(), "scale": scale.tolist()}
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    torch.manual_seed(4)
    model = DDP(nn.Linear(12, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model((inputs - mean) / scale), labels, weight=1 / counts.float())
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note(**note_of_setup)


def oracle(ranks):
    """Counts and scale are those of the whole data set, the mean is rank 0's."""
    inputs, labels = dataset()[:]
    counts, mean = torch.bincount(labels).tolist(), inputs[::WORLD].mean(0)
    return {"counts": all(one["counts"] == counts for one in ranks),
            "mean": all(torch.allclose(torch.tensor(one["mean"]), mean) for one in ranks),
            "scale": all(torch.allclose(torch.tensor(one["scale"]), inputs.abs().amax(0)) for one in ranks)}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
