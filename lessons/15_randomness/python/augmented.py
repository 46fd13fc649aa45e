"""Images that are flipped and made noisy as they are read."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from twin import fault, note


class Images(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.images = torch.rand(64, 1, 8, 8, generator=generator)
        self.labels = torch.randint(0, 3, (64,), generator=generator)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        return image + 0.1 * torch.randn_like(image), self.labels[index]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if not fault("same-augmentation-everywhere"):
        torch.manual_seed(1000 + rank)
    data = Images()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    note(next_draws=torch.rand(4).tolist())


def oracle(ranks):
    """The ranks' random numbers are not the same ones."""
    return {"draws": ranks[0]["next_draws"] != ranks[1]["next_draws"]}


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
