"""A small pupil learns gestures from a larger teacher; its gradients are averaged as soon as each is there.

The teacher learns on rank 0, from gestures of its own, and is sent to the others; the pupil learns on all ranks.
"""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, mse_loss
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, RandomSampler, Subset, TensorDataset

EPOCHS, BATCH = 9, 32
TAUGHT, TRAINING, HELD_OUT = 600, 1345, 400
HOT = 3.0  # the temperature at which answers are compared
SOFT, HIDDEN = 0.7, 0.3  # the weights of the teacher's answers and of its hidden values
GESTURES, SENSORS, TIMES = 7, 3, 16


def gestures(number, seed):
    """Each moves the sensors by two waves of its own."""
    shapes = torch.Generator().manual_seed(41)
    height = torch.randn(GESTURES, SENSORS, 2, generator=shapes)
    speed = 1 + 2 * torch.rand(GESTURES, 2, generator=shapes)
    dice = torch.Generator().manual_seed(seed)
    which = torch.randint(GESTURES, (number,), generator=dice)
    tempo = 0.85 + 0.3 * torch.rand(number, 1, generator=dice)
    times = torch.linspace(0, 6, TIMES) * tempo + torch.rand(number, 1, generator=dice)
    waves = torch.sin(times[:, None] * speed[which][:, :, None])
    values = height[which] @ waves + 0.8 * torch.randn(number, SENSORS, TIMES, generator=dice)
    return TensorDataset(values, which, torch.arange(number))


class Reader(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(SENSORS, width, 5, padding=2), nn.GELU(), nn.AvgPool1d(4), nn.Flatten(),
                                  nn.Dropout(dropout), nn.Linear(4 * width, width), nn.GELU())
        self.head = nn.Linear(width, GESTURES)

    def forward(self, values):
        hidden = self.body(values)
        return self.head(hidden), hidden  # the answers, and what they come from


class Centre(nn.Module):
    """Where the teacher's answers are on average, over all ranks."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(GESTURES))

    def follow(self, answers, world):
        batch = answers.mean(0)
        dist.all_reduce(batch)
        self.mean.lerp_(batch / world, 0.1)


def teach(teacher):
    values, which, _ = gestures(TAUGHT, 42).tensors
    optimizer = torch.optim.Adam(teacher.parameters(), lr=3e-3)
    for numbers in torch.randint(TAUGHT, (200, 64)):
        loss = cross_entropy(teacher(values[numbers])[0], which[numbers])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def average_when_ready(parameters, works):
    """Each gradient's reduction begins in the backward pass."""
    for one in parameters:
        one.register_post_accumulate_grad_hook(
            lambda this: works.append((this, dist.all_reduce(this.grad, async_op=True))))


@torch.no_grad()
def evaluate(net, data, rank, world):
    """Mean loss and accuracy over the samples of all ranks."""
    net.eval()
    values, which, _ = (one[rank::world] for one in data.tensors)
    answers, _ = net(values)
    counts = torch.stack([cross_entropy(answers, which, reduction="sum"), (answers.argmax(1) == which).sum()])
    dist.all_reduce(counts)
    net.train()
    return (counts / len(data)).tolist()


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(43)
    teacher = Reader(48, 0.3)
    if rank == 0:
        teach(teacher)
    for one in teacher.parameters():
        dist.broadcast(one.data, src=0)
    teacher.requires_grad_(False).eval()
    torch.manual_seed(44)
    pupil, centre = nn.ModuleDict({"net": Reader(16, 0.05), "adapter": nn.Linear(16, 48)}), Centre()
    works = []
    average_when_ready(pupil.parameters(), works)
    optimizers = [torch.optim.Muon([one for one in pupil.parameters() if one.ndim == 2], lr=0.02, weight_decay=0.01),
                  torch.optim.AdamW([one for one in pupil.parameters() if one.ndim != 2], lr=4e-3)]
    data, held = gestures(TRAINING, 45), gestures(HELD_OUT, 46)
    part = Subset(data, torch.arange(TRAINING).tensor_split(world)[rank].tolist())
    loader = DataLoader(part, BATCH, sampler=RandomSampler(part, generator=torch.Generator().manual_seed(47 + rank)))
    batches = torch.tensor(len(loader))
    dist.all_reduce(batches, op=dist.ReduceOp.MIN)  # a rank may have more samples than another
    schedules = [CosineAnnealingLR(one, EPOCHS * (TRAINING // world // BATCH)) for one in optimizers]
    torch.manual_seed(480 + rank)
    losses, seen, accuracies = [], [], []
    for epoch in range(EPOCHS):
        seen.append([])
        for _, (values, which, numbers) in zip(range(batches.item()), loader, strict=False):
            told, taught = teacher(values)
            centre.follow(told, world)
            answers, hidden = pupil["net"](values + 0.1 * torch.randn_like(values))
            soft = kl_div(log_softmax(answers / HOT, 1), log_softmax((told - centre.mean) / HOT, 1),
                          reduction="batchmean", log_target=True)
            near = mse_loss(pupil["adapter"](hidden), taught)
            loss = SOFT * HOT**2 * soft + (1 - SOFT) * cross_entropy(answers, which) + HIDDEN * near
            pupil.zero_grad()
            loss.backward()
            for one, work in works:
                work.wait()
                one.grad.div_(world)
            works.clear()
            for one in (*optimizers, *schedules):
                one.step()
            losses.append(loss.item())
            seen[-1].extend(numbers.tolist())
        value, accuracy = evaluate(pupil["net"], held, rank, world)
        accuracies.append(accuracy)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}, held out {value:.3f}, {accuracy:.1%} right")
    every = nn.ModuleDict({"pupil": pupil, "teacher": teacher, "centre": centre})
    torch.save(every.state_dict(), folder / f"rank_{rank}.pt")
    report = {"losses": losses, "seen": seen, "accuracies": accuracies, "held_out": value, "accuracy": accuracy}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
