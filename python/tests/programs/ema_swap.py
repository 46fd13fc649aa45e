"""After each epoch rank 0 puts the averaged weights into its model, evaluates, and puts its own ones back."""

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(110, 20), torch.randn(110, 1))
    held_out = DataLoader(TensorDataset(torch.randn(40, 20), torch.randn(40, 1)), batch_size=20)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=10, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1)))
    parameters = list(model.parameters())
    averages = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            for average, p in zip(averages, parameters, strict=True):
                average.lerp_(p.detach(), 0.1)
        if dist.get_rank() == 0:
            own = [p.detach().clone() for p in parameters]
            for p, average in zip(parameters, averages, strict=True):
                p.data.copy_(average)
            model.eval()
            with torch.no_grad():
                loss = sum(nn.functional.mse_loss(model.module(x), y, reduction="sum") for x, y in held_out) / 40
            print(f"epoch {epoch}: {loss.item():.4f}")
            for p, before in zip(parameters, own, strict=True):
                p.data.copy_(before)
        dist.barrier()
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
