"""A layer that is used twice, with activation checkpointing, and gradients that are views of DDP's buckets."""

import datetime

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import ended_as_one_process
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, BATCH, EPOCHS, LR = 64, 8, 3, 0.1


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.shared, self.last = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, inputs):
        hidden = self.first(inputs).relu()
        for _ in range(2):
            if fault("parameter-ready-twice"):
                hidden = checkpoint(self.shared, hidden, use_reentrant=True).relu()
            else:
                hidden = checkpoint(self.shared, hidden, use_reentrant=False).relu()
        return self.last(hidden)


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 12, generator=generator)
    return TensorDataset(inputs, inputs @ torch.randn(12, 1, generator=generator))


def network():
    torch.manual_seed(4)
    return Network()


def clear(model, optimizer):
    if fault("zero-grad-on-bucket-view"):
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.detach_()
                parameter.grad.zero_()
    else:
        optimizer.zero_grad()


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    data = dataset()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    model = DDP(network(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            clear(model, optimizer)
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note(parameters=parameters_to_vector(model.parameters()).tolist())


def oracle(ranks):
    """Each rank has the weights that one process gets from the batches of both."""
    return ended_as_one_process(ranks, dataset(), network(), BATCH, EPOCHS, LR)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
