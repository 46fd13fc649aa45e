"""A network guesses how much noise is in an image; loader workers make the noise, with the data set's own generator."""

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from oracles import joint
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info
from twin import fault, note


class NoisyImages(Dataset):
    def __init__(self, seed):
        self.images = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(3))
        self.random = numpy.random.default_rng(seed)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        level = self.random.random(1, dtype=numpy.float32)
        noise = self.random.standard_normal((1, 8, 8), dtype=numpy.float32)
        return self.images[index] + level[0] * noise, level


def start_worker(number):
    torch.set_num_threads(1)
    if not fault("worker-streams-copied"):
        info = get_worker_info()
        info.dataset.random = numpy.random.default_rng(info.seed)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1000 + rank)
    data = NoisyImages(seed=rank)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=2, worker_init_fn=start_worker)
    seen = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for images, levels in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(images), levels)
            loss.backward()
            optimizer.step()
            seen += levels.flatten().tolist()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}, mean level {levels.mean().item():.4f}", flush=True)
    note(levels=seen)


def oracle(ranks):
    """No two samples have the same amount of noise."""
    levels = joint([one["levels"] for one in ranks])
    return {"levels": len(set(levels)) == len(levels) > 0}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
