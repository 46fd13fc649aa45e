"""Matches two views of a thing against all ranks' others, with a learned temperature."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 4
BATCH = 16


def pairs(number, seed):
    """Two noisy views of each thing."""
    generator = torch.Generator().manual_seed(seed)
    things = torch.randn(number, 6, generator=generator)
    left, right = (torch.randn(6, 20, generator=torch.Generator().manual_seed(one)) for one in (1, 2))
    views = [things @ one + 0.5 * torch.randn(number, 20, generator=generator) for one in (left, right)]
    return TensorDataset(*views)


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 8))
        self.right = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 8))
        self.log_scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, left, right):
        return normalize(self.left(left), dim=1), normalize(self.right(right), dim=1), self.log_scale.exp()


def gathered(own, rank, world):
    """All ranks' rows. Gradients flow through this rank's own only."""
    parts = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(parts, own.detach())
    parts[rank] = own
    return torch.cat(parts)


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(12)
    train, test = pairs(384, 160), pairs(64, 161)
    net = TwoTowers()
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    sampler = DistributedSampler(train, seed=12)
    loader = DataLoader(train, batch_size=BATCH, sampler=sampler, drop_last=True)
    losses = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for left_view, right_view in loader:
            left, right, scale = ddp(left_view, right_view)
            own = torch.arange(len(left)) + rank * len(left)
            loss = (cross_entropy(scale * left @ gathered(right, rank, world).T, own)
                    + cross_entropy(scale * right @ gathered(left, rank, world).T, own)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if rank == 0:
            print(f"epoch {epoch}: {losses[-1]:.4f}")
    with torch.no_grad():
        left, right, scale = net(*test.tensors)
        held_out = cross_entropy(scale * left @ right.T, torch.arange(len(left))).item()
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    (folder / f"rank_{rank}.json").write_text(json.dumps({"losses": losses, "held_out": held_out}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
