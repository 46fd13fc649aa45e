"""BatchNorm's running statistics: all ranks evaluate with them, and rank 0 shows a few predictions after each epoch."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import equal
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note


def dataset(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = 3 + 2 * torch.randn(samples, 12, generator=generator)
    return TensorDataset(inputs, (inputs[:, 0] > inputs[:, 1]).long())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(9)
    train, test = dataset(64, seed=1), dataset(16, seed=2)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, batch_size=8, sampler=sampler)
    net = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    if fault("buffers-not-synced"):
        model = DDP(net, broadcast_buffers=False)
    else:
        model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    modes = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        modes.append(model.training)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        if rank == 0:
            model.eval()
            with torch.no_grad():
                print(f"epoch {epoch}: predicts {net(test[:4][0]).argmax(1).tolist()}", flush=True)
            if not fault("train-mode-differs-across-ranks"):
                model.train()
    model.eval()
    hits = torch.zeros(())
    with torch.no_grad():
        for inputs, targets in DataLoader(test, batch_size=4, sampler=DistributedSampler(test, shuffle=False)):
            hits += (model(inputs).argmax(1) == targets).sum()
    dist.all_reduce(hits)
    if rank == 0:
        print(f"accuracy {hits.item() / len(test):.4f}", flush=True)
    note(modes=modes, buffers=[buffer.tolist() for buffer in net.buffers()])


def oracle(ranks):
    """The ranks evaluate with one set of statistics, and have trained in one mode."""
    return {"buffers": equal(ranks, "buffers"), "modes": equal(ranks, "modes")}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
