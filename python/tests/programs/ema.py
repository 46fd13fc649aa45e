"""Averaged weights beside the trained ones, evaluated and saved by rank 0."""

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(160, 20), torch.randint(0, 4, (160,)))
    test = TensorDataset(torch.randn(40, 20), torch.randint(0, 4, (40,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=10, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)))
    ema = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            ema.update_parameters(model.module)
        if dist.get_rank() == 0:
            ema.eval()
            with torch.no_grad():
                right = sum(ema(x).argmax(1).eq(y).sum().item() for x, y in DataLoader(test, batch_size=20))
            print(f"epoch {epoch}: {right} of {len(test)}")
            torch.save({"model": model.module.state_dict(), "ema": ema.state_dict()}, "ema.pt")
    fingerprint.say(model.module)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
