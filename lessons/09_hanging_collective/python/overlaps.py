"""Each rank evaluates its share; the counts are added up while the ranks already look at something else."""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import get_total_norm
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset
from twin import fault, note

TESTS = 16


class Recordings(Dataset):
    """The last ones are long, and take their time to read."""

    def __init__(self, samples, seed):
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(samples, 12, generator=generator)
        self.targets = (self.inputs[:, 0] > 0).long()
        self.seconds = [0.1 if 2 * index >= samples else 0.0 for index in range(samples)]

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        time.sleep(self.seconds[index])
        return self.inputs[index], self.targets[index]


def evaluate(model, loader):
    """How many samples it gets right, and how many there are."""
    counts = torch.zeros(2)
    with torch.no_grad():
        for inputs, targets in loader:
            counts += torch.tensor([(model(inputs).argmax(1) == targets).sum().item(), len(inputs)])
    return counts


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    train, test = Recordings(32, seed=1), Recordings(TESTS, seed=2)
    share = Subset(test, range(rank * TESTS // world_size, (rank + 1) * TESTS // world_size))
    sampler = DistributedSampler(train)
    loader, test_loader = DataLoader(train, batch_size=8, sampler=sampler), DataLoader(share, batch_size=4)
    torch.manual_seed(4)
    model = DDP(nn.Linear(12, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        counts = evaluate(model.module, test_loader)
        work = dist.all_reduce(counts, async_op=True)
        norm = get_total_norm(model.parameters())
        if not fault("async-work-not-waited"):
            work.wait()
        hits, count = counts.tolist()
        if rank == 0:
            print(f"epoch {epoch}: norm {norm:.4f}, accuracy {hits / count:.4f} of {count:.0f} samples", flush=True)
    dist.barrier()
    note(count=count)


def oracle(ranks):
    """What rank 0 prints is of the whole test set."""
    return {"count": ranks[0]["count"] == TESTS}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
