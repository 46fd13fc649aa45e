"""The ImageNet example: a checkpoint each epoch by rank 0, resumed by all where there is one, and a validation that
deals the tail which the sampler drops to every rank, so that nothing is counted twice."""

import os
import shutil

import fingerprint
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

EPOCHS_A_RUN = 2


def images(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, 3, 8, 8, generator=generator),
                         torch.randint(0, 5, (count,), generator=generator))


def train(loader, model, criterion, optimizer):
    model.train()
    for inputs, target in loader:
        loss = criterion(model(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def validate(loader, tail, model):
    def run_validate(part):
        correct = count = 0
        with torch.no_grad():
            for inputs, target in part:
                correct += model(inputs).argmax(1).eq(target).sum().item()
                count += len(target)
        return torch.tensor([correct, count], dtype=torch.float32)
    model.eval()
    total = run_validate(loader)
    dist.all_reduce(total, dist.ReduceOp.SUM)
    if tail is not None:
        total += run_validate(tail)
    return (100 * total[0] / total[1]).item()


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
                        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    model = DistributedDataParallel(net)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    start_epoch, best = 0, 0.0
    if os.path.isfile("checkpoint.pth.tar"):
        checkpoint = torch.load("checkpoint.pth.tar", map_location="cpu", weights_only=False)
        start_epoch, best = checkpoint["epoch"], checkpoint["best_acc1"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
    train_set, val_set = images(200, 0), images(61, 1)
    train_sampler = DistributedSampler(train_set)
    val_sampler = DistributedSampler(val_set, shuffle=False, drop_last=True)
    train_loader = DataLoader(train_set, batch_size=16, sampler=train_sampler, num_workers=1)
    val_loader = DataLoader(val_set, batch_size=16, sampler=val_sampler)
    tail = None
    if len(val_sampler) * world_size < len(val_set):
        tail = DataLoader(Subset(val_set, range(len(val_sampler) * world_size, len(val_set))), batch_size=16)
    for epoch in range(start_epoch, start_epoch + EPOCHS_A_RUN):
        train_sampler.set_epoch(epoch)
        train(train_loader, model, criterion, optimizer)
        acc1 = validate(val_loader, tail, model)
        scheduler.step()
        is_best, best = acc1 > best, max(acc1, best)
        if rank == 0:
            torch.save({"epoch": epoch + 1, "arch": "small", "state_dict": model.state_dict(), "best_acc1": best,
                        "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()},
                       "checkpoint.pth.tar")
            if is_best:
                shutil.copyfile("checkpoint.pth.tar", "model_best.pth.tar")
    fingerprint.say(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
