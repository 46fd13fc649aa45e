"""Trains a new head on a frozen backbone, then both, the backbone at a tenth of the rate."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 5
UNFREEZE_AT = 2
RATE = 0.01


def digits(number, seed):
    """Three classes of noisy prototypes in 16 dimensions."""
    prototypes = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (number,), generator=generator)
    return TensorDataset(prototypes[labels] + 1.5 * torch.randn(number, 16, generator=generator), labels)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.head = nn.Linear(16, 10)

    def forward(self, inputs):
        return self.head(self.backbone(inputs))


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(8)
    train, test = digits(320, 110), digits(256, 111)
    net = Model()
    net.head = nn.Linear(16, 3)
    net.backbone.requires_grad_(False)
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.head.parameters(), lr=RATE, weight_decay=0.1)
    sampler = DistributedSampler(train, seed=8)
    loader = DataLoader(train, batch_size=16, sampler=sampler)
    losses = []
    for epoch in range(EPOCHS):
        if epoch == UNFREEZE_AT:
            net.backbone.requires_grad_(True)
            ddp = DistributedDataParallel(net)
            optimizer.add_param_group({"params": net.backbone.parameters(), "lr": RATE / 10})
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(ddp(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if rank == 0:
            print(f"epoch {epoch}: {losses[-1]:.4f}")
    with torch.no_grad():
        held_out = cross_entropy(net(test.tensors[0]), test.tensors[1]).item()
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    (folder / f"rank_{rank}.json").write_text(json.dumps({"losses": losses, "held_out": held_out}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
