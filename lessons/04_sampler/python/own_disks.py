"""Each node downloads the data set to a disk of its own; then the ranks share the files between them."""

import pathlib
import random
import sys

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import joint
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from twin import fault, note

NAMES = [f"sample{number:03}.npy" for number in range(64)]


class Files(Dataset):
    def __init__(self, folder, names):
        self.folder, self.names = folder, names

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        values = torch.from_numpy(numpy.load(self.folder / self.names[index]))
        return values[:-1], values[-1:], self.names[index]


def download(folder, node):
    """The files' names, as they have arrived: over several connections, each time in another order."""
    folder.mkdir(exist_ok=True)
    inputs = numpy.random.default_rng(4).normal(size=(len(NAMES), 9)).astype(numpy.float32)
    arrived = list(enumerate(NAMES))
    random.Random(node).shuffle(arrived)
    for number, name in arrived:
        numpy.save(folder / name, numpy.append(inputs[number], inputs[number].sum()))
    return [name for _, name in arrived]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = pathlib.Path(sys.argv[1], f"disk{rank}")  # one rank a node
    names = download(folder, node=rank)
    if not fault("file-order-differs"):
        names.sort()
    data = Files(folder, names)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    torch.manual_seed(0)
    model = DDP(nn.Linear(9, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        read = []
        for inputs, targets, names_of_batch in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            read += names_of_batch
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        print(f"rank {rank}, epoch {epoch}: {len(read)} files", flush=True)
    note(read=read)


def oracle(ranks):
    """An epoch reads every file once."""
    return {"read": sorted(joint([one["read"] for one in ranks])) == NAMES}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
