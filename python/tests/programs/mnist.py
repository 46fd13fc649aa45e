"""The MNIST example: convolutions, dropout, Adadelta, StepLR, and an evaluation whose counts are added up."""

import fingerprint
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 8, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(8 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = torch.flatten(self.dropout1(x), 1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(x)))), dim=1)


def train(model, loader, optimizer):
    model.train()
    for data, target in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()


def test(model, loader):
    model.eval()
    sums = torch.zeros(3)  # loss, correct, count
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            sums[0] += F.nll_loss(output, target, reduction="sum").item()
            sums[1] += output.argmax(dim=1).eq(target).sum().item()
            sums[2] += len(data)
    dist.all_reduce(sums)
    if dist.get_rank() == 0:
        print(f"Average loss: {sums[0] / sums[2]:.4f}, accuracy: {sums[1]:.0f}/{sums[2]:.0f}")


def images(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, 1, 12, 12, generator=generator),
                         torch.randint(0, 10, (count,), generator=generator))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    train_set, test_set = images(256, 0), images(64, 1)
    sampler = DistributedSampler(train_set, shuffle=True)
    train_loader = DataLoader(train_set, batch_size=16, sampler=sampler)
    test_loader = DataLoader(test_set, batch_size=32, sampler=DistributedSampler(test_set, shuffle=False))
    model = DDP(Net())
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, 4):
        sampler.set_epoch(epoch)
        train(model, train_loader, optimizer)
        test(model, test_loader)
        scheduler.step()
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
