"""Large images, in a container for each rank whose /dev/shm is small. Loader workers hand over batches in it."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from container import enter_container
from oracles import equal, joint
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from twin import fault, note

SAMPLES, BATCH, WORKERS, SIDE = 32, 8, 2, 128
BYTES_AHEAD = 2 * BATCH * 3 * SIDE * SIDE * 4  # by each worker: two batches
SHARED_MEMORY = 1 << 20  # where Docker gives 64 MB


class Images(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        image = torch.randn(3, SIDE, SIDE, generator=torch.Generator().manual_seed(index))
        return index, image, image.mean().unsqueeze(0)


def main():
    dist.init_process_group("gloo")
    rank, data = dist.get_rank(), Images()
    if fault("small-shared-memory"):
        workers = WORKERS
    else:
        room = os.statvfs("/dev/shm")
        workers = min(WORKERS, room.f_bavail * room.f_frsize // BYTES_AHEAD)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=workers)
    torch.manual_seed(4)
    model = DDP(nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(192, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen = []
        for numbers, images, targets in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(images), targets)
            loss.backward()
            optimizer.step()
            seen += numbers.tolist()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note(seen=seen, weights=model.module[2].weight.tolist())


def oracle(ranks):
    """An epoch trains on every image once, and the ranks' weights are equal."""
    seen = sorted(joint([one["seen"] for one in ranks]))
    return {"seen": seen == list(range(SAMPLES)), "weights": equal(ranks, "weights")}


if __name__ == "__main__":
    enter_container(SHARED_MEMORY)
    main()
    dist.destroy_process_group()
