"""A contrastive loss over the batch of all ranks, by an all_gather that gradients flow through."""

import fingerprint
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.images = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 16))
        self.texts = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, image, text):
        return F.normalize(self.images(image), dim=1), F.normalize(self.texts(text), dim=1), self.scale.exp()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    image = torch.randn(160, 20)
    data = TensorDataset(image, image[:, :12] + 0.1 * torch.randn(160, 12))
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=10, sampler=sampler, drop_last=True)
    model = DDP(TwoTowers())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            a, b, scale = model(x, y)
            all_a, all_b = torch.cat(all_gather(a)), torch.cat(all_gather(b))
            labels = torch.arange(len(a)) + dist.get_rank() * len(a)
            loss = (F.cross_entropy(scale * a @ all_b.T, labels) + F.cross_entropy(scale * b @ all_a.T, labels)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
