"""Leaves of six trees are told apart by a small convolutional net; of its averaged weights the best are kept."""

import contextlib
import copy
import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, interpolate
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS = 8
BATCH = 24  # pictures of a rank in a backward pass
ACCUMULATE = 2  # backward passes of a step
TRAINING, VALIDATION = 1152, 300
KINDS, SIDE = 6, 14


def leaves(number, seed):
    """Pictures, what they show, and their numbers."""
    shapes = torch.randn(KINDS, 1, 5, 5, generator=torch.Generator().manual_seed(1))
    shapes = interpolate(shapes, SIDE, mode="bicubic")
    dice = torch.Generator().manual_seed(seed)
    kinds = torch.randint(KINDS, (number,), generator=dice)
    shifts = torch.randint(-2, 3, (number, 2), generator=dice).tolist()
    pictures = torch.stack([shapes[kind].roll(shift, (1, 2)) for kind, shift in zip(kinds, shifts, strict=True)])
    light = 0.5 + torch.rand(number, 1, 1, 1, generator=dice)
    pictures = light * pictures + 0.9 * torch.randn(pictures.shape, generator=dice)
    return TensorDataset(pictures, kinds, torch.arange(number))


class Net(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Linear(8 * width, KINDS)

    def forward(self, pictures):
        return self.head(self.body(pictures))


def groups(net, decay):
    matrices = [one for one in net.parameters() if one.ndim > 1]
    vectors = [one for one in net.parameters() if one.ndim == 1]
    return [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]


def share_statistics(net, world):
    """Each rank has normalized by its own batches; from here on all have the mean of what they counted."""
    for name, buffer in net.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            dist.all_reduce(buffer)
            buffer.div_(world)


@torch.no_grad()
def evaluate(net, pictures, kinds, rank, world):
    """Mean loss and accuracy; each rank counts a part."""
    net.eval()
    guesses, right = net(pictures[rank::world]), kinds[rank::world]
    counts = torch.stack([cross_entropy(guesses, right, reduction="sum"),
                          (guesses.argmax(1) == right).sum(), torch.tensor(float(len(right)))])
    dist.all_reduce(counts)
    return (counts[0] / counts[2]).item(), (counts[1] / counts[2]).item()


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    training, validation = leaves(TRAINING, 2), leaves(VALIDATION, 3)
    sampler = DistributedSampler(training, shuffle=True, seed=4, drop_last=True)
    loader = DataLoader(training, batch_size=BATCH, sampler=sampler, drop_last=True)
    torch.manual_seed(5)
    net = Net()
    model = DistributedDataParallel(net)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(groups(net, 5e-3), lr=0.05, momentum=0.9, nesterov=True)
    schedule = OneCycleLR(optimizer, max_lr=0.15, total_steps=EPOCHS * len(loader) // ACCUMULATE)
    dice = torch.Generator().manual_seed(60 + rank)
    best, kept = float("inf"), None
    losses, seen, accuracies = [], [], []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        model.train()
        seen.append([])
        for place, (pictures, kinds, numbers) in enumerate(loader):
            last = (place + 1) % ACCUMULATE == 0
            seen[-1].extend(numbers.tolist())
            flips = torch.rand(len(pictures), 1, 1, 1, generator=dice) < 0.2
            pictures = torch.where(flips, pictures.flip(3), pictures)
            with contextlib.nullcontext() if last else model.no_sync():
                loss = cross_entropy(model(pictures), kinds, label_smoothing=0.05)
                (loss / ACCUMULATE).backward()
            losses.append(loss.item())
            if last:
                optimizer.step()
                schedule.step()
                average.update_parameters(net)
                optimizer.zero_grad()
        share_statistics(average.module, world)
        value, accuracy = evaluate(average.module, *validation.tensors[:2], rank, world)
        accuracies.append(accuracy)
        if value < best:
            best, kept = value, copy.deepcopy(average.module.state_dict())
        if rank == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.3f}, validation {value:.3f}, {accuracy:.1%} right")
    net.load_state_dict(kept)
    value, accuracy = evaluate(net, *validation.tensors[:2], rank, world)
    torch.save(net.state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "accuracies": accuracies, "best": best, "held_out": value,
              "accuracy": accuracy}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
