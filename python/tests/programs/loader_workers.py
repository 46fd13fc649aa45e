"""DistributedSampler with drop_last and set_epoch, and 2 workers that live as long as the loader."""

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Augmented(Dataset):
    def __len__(self):
        return 203

    def __getitem__(self, index):
        sample = torch.randn(12, generator=torch.Generator().manual_seed(index))
        return sample + 0.1 * torch.randn(12), sample.sum()  # noise by the worker's own generator


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(5 + dist.get_rank())
    data = Augmented()
    sampler = DistributedSampler(data, drop_last=True, seed=7)
    loader = DataLoader(data, batch_size=16, sampler=sampler, num_workers=2, persistent_workers=True, drop_last=True,
                        prefetch_factor=4)
    model = DDP(nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 1)))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.005)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.smooth_l1_loss(model(x).squeeze(1), y).backward()
            optimizer.step()
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
