"""The backbone is trained in the first epoch, then frozen: the rest is for the head."""

import datetime

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import equal
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, inputs):
        return self.head(self.backbone(inputs))


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 12, generator=generator)
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    data = dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    torch.manual_seed(4)
    net = Network()
    model = DDP(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(4):
        if epoch == 1:
            net.backbone.requires_grad_(False)
            if not fault("frozen-after-wrapping"):
                model = DDP(net)  # what is reduced is decided when a model is wrapped
            optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note(parameters=parameters_to_vector(net.parameters()).tolist())


def oracle(ranks):
    """All ranks come to the end, with the same weights."""
    return {"parameters": equal(ranks, "parameters")}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
