"""A backbone in eval mode, of which only the norm's weight and bias train, and of two heads the one that the batch asks
for: the other has no gradient."""

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32))
        self.heads = nn.ModuleList([nn.Linear(32, 4), nn.Linear(32, 4)])

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x, head):
        return self.heads[head](self.backbone(x))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    if dist.get_rank() == 0:
        pretrained = Net()
        torch.save(pretrained.state_dict(), "pretrained.pt")
    dist.barrier()
    torch.manual_seed(1)
    net = Net()
    net.load_state_dict(torch.load("pretrained.pt", map_location="cpu"), strict=True)
    for parameter in net.backbone.parameters():
        parameter.requires_grad = False
    net.backbone[1].requires_grad_(True)
    net.heads.apply(lambda module: module.reset_parameters() if hasattr(module, "reset_parameters") else None)
    data = TensorDataset(torch.randn(160, 20), torch.randint(0, 4, (160,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=10, sampler=sampler)
    model = DDP(net, find_unused_parameters=True)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        model.train()
        for number, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x, number % 2), y).backward()
            optimizer.step()
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
