"""A second head learns only where a batch has an image of its kind."""

import datetime

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import equal
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.common, self.rare = nn.Linear(12, 16), nn.Linear(16, 3), nn.Linear(16, 3)

    def forward(self, inputs, kinds):
        hidden = self.body(inputs).relu()
        outputs = self.common(hidden)
        if kinds.any():
            outputs = outputs + self.rare(hidden) * kinds[:, None]
        return outputs


def dataset():
    generator = torch.Generator().manual_seed(1)
    kinds = (torch.rand(64, generator=generator) < 0.2).float()
    inputs = torch.randn(64, 12, generator=generator)
    return TensorDataset(inputs, kinds, torch.randint(0, 3, (64,), generator=generator))


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    data = dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    torch.manual_seed(4)
    if fault("unused-parameter"):
        model = DDP(TwoHeads())
    else:
        model = DDP(TwoHeads(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, kinds, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs, kinds), targets)
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note(rare=model.module.rare.weight.tolist())


def oracle(ranks):
    """All ranks come to the end, with the same weights."""
    return {"weights": equal(ranks, "rare")}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
