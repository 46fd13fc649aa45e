"""A folder of files, one for each sample; each rank reads every second one."""

import pathlib
import sys

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from twin import fault, note

FILES = 64


class Files(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        values = torch.from_numpy(numpy.load(self.paths[index]))
        return values[:-1], values[-1:]


def write_files(folder):
    random = numpy.random.default_rng(4)
    for number in range(FILES):
        inputs = random.normal(size=9).astype(numpy.float32)
        numpy.save(folder / f"sample{number:03}.npy", numpy.append(inputs, inputs.sum()))


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        write_files(folder)
    dist.barrier()
    data = Files(sorted(folder.glob("sample*.npy"))[rank::world_size])
    sampler = DistributedSampler(data) if fault("sharded-twice") else None
    loader = DataLoader(data, batch_size=4, shuffle=sampler is None, sampler=sampler)
    torch.manual_seed(0)
    model = DDP(nn.Linear(9, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        if sampler is not None:
            sampler.set_epoch(epoch)
        seen = 0
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            seen += len(inputs)
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        print(f"rank {rank}, epoch {epoch}: {seen} samples", flush=True)
    note(samples=seen)


def oracle(ranks):
    """An epoch reads every file once."""
    return {"samples": sum(one["samples"] for one in ranks) == FILES}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
