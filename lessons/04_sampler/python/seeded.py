"""Sets every seed by one number, and trains with noise on its inputs that differs by rank."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import joint
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from twin import fault, note

SAMPLES, EPOCHS, SEED = 64, 4, 17


def dataset():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 12, generator=generator)
    return TensorDataset(torch.arange(SAMPLES), inputs, inputs.sum(1, keepdim=True))


def main():
    dist.init_process_group("gloo")
    rank, data = dist.get_rank(), dataset()
    torch.manual_seed(SEED)
    model = DDP(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1)))
    torch.manual_seed(SEED + rank)
    if fault("shards-overlap"):
        sampler = DistributedSampler(data, seed=SEED + rank)
    else:
        sampler = DistributedSampler(data, seed=SEED)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        seen.append([])
        for numbers, inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs + 0.1 * torch.randn_like(inputs)), targets)
            loss.backward()
            optimizer.step()
            seen[epoch] += numbers.tolist()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note(seen=seen)


def oracle(ranks):
    """An epoch trains on every sample once."""
    epochs = zip(*(one["seen"] for one in ranks), strict=True)
    return {"seen": all(sorted(joint(parts)) == list(range(SAMPLES)) for parts in epochs)}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
