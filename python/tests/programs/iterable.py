"""A stream of samples that each rank's workers share out among them by position."""

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Stream(IterableDataset):
    def __init__(self, count, rank, world_size):
        self.count, self.rank, self.world_size, self.epoch = count, rank, world_size, 0

    def __iter__(self):
        worker = get_worker_info()
        workers, worker_id = (worker.num_workers, worker.id) if worker else (1, 0)
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        for index in order[self.rank * workers + worker_id::self.world_size * workers]:
            sample = torch.randn(8, generator=torch.Generator().manual_seed(index))
            yield sample, sample.sum()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    stream = Stream(160, dist.get_rank(), dist.get_world_size())
    loader = DataLoader(stream, batch_size=10, num_workers=2)
    model = DDP(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(3):
        stream.epoch = epoch
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x).squeeze(1), y).backward()
            optimizer.step()
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
