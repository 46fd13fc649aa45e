"""Gradient accumulation: 4 micro-batches an update, reduced with the last one; the last window of a pass is shorter."""

import contextlib

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ACCUMULATE = 4


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(176, 20), torch.randn(176, 1))
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        optimizer.zero_grad()
        for i, (x, y) in enumerate(loader):
            is_last = i + 1 == len(loader)
            updates = (i + 1) % ACCUMULATE == 0 or is_last
            window = len(loader) % ACCUMULATE if i >= len(loader) // ACCUMULATE * ACCUMULATE else ACCUMULATE
            with contextlib.nullcontext() if updates else model.no_sync():
                loss = nn.functional.mse_loss(model(x), y) / window
                loss.backward()
            if updates:
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                optimizer.step()
                optimizer.zero_grad()
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
