"""A small model learns from a larger one, whose weights stay as they are; the rate falls as a cosine does."""

import json
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, kl_div
from torch.nn.parallel import DistributedDataParallel

STEPS = 60
BATCH = 16
CLASSES = 5
HEAT = 3.0    # softens what the teacher says
WEIGHT = 0.7  # of the teacher; the labels have the rest


def signals(number, seed):
    """Tones in noise; the class is the tone's pitch. One label in ten is wrong."""
    dice = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (number,), generator=dice)
    turns = torch.arange(32) * (0.3 + 0.25 * labels[:, None]) + 6 * torch.rand(number, 1, generator=dice)
    wrong = torch.rand(number, generator=dice) < 0.1
    given = torch.where(wrong, torch.randint(0, CLASSES, (number,), generator=dice), labels)
    return (turns.sin() + 0.6 * torch.randn(number, 32, generator=dice))[:, None], given, labels


class Ear(nn.Module):
    def __init__(self, width, norm):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(1, width, 7, padding=3), norm(width), nn.ReLU(),
                                  nn.Conv1d(width, width, 5, stride=2), norm(width), nn.ReLU(), nn.AdaptiveMaxPool1d(2))
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, sound):
        return self.head(self.body(sound).flatten(1))


def make_teacher():
    """Every rank trains it for itself, from one seed and with the same batches."""
    torch.manual_seed(1)
    teacher = Ear(32, nn.BatchNorm1d)
    optimizer = torch.optim.Adam(teacher.parameters(), lr=5e-3)
    sounds, labels, _ = signals(320, 20)
    for start in range(0, 320, 16):
        optimizer.zero_grad()
        cross_entropy(teacher(sounds[start:start + 16]), labels[start:start + 16]).backward()
        optimizer.step()
    return teacher.eval().requires_grad_(False)


def main():
    folder = pathlib.Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    teacher = make_teacher()
    torch.manual_seed(50 + rank)
    student = DistributedDataParallel(Ear(8, lambda width: nn.GroupNorm(2, width)))
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    sounds, labels = (part[rank::world] for part in signals(640, 21)[:2])
    dice = torch.Generator().manual_seed(80 + rank)
    losses, rates = [], []
    for step in range(STEPS):
        chosen = torch.randint(0, len(sounds), (BATCH,), generator=dice)
        with torch.no_grad():
            advice = teacher(sounds[chosen])
        optimizer.zero_grad()
        guess = student(sounds[chosen])
        soft = kl_div((guess / HEAT).log_softmax(1), (advice / HEAT).softmax(1), reduction="batchmean") * HEAT**2
        hard = cross_entropy(guess, labels[chosen])
        loss = WEIGHT * soft + (1 - WEIGHT) * hard
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        rates.append(schedule.get_last_lr()[0])
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: soft {soft.item():.4f}, hard {hard.item():.4f}")
    with torch.no_grad():
        test_sounds, _, test_labels = signals(400, 22)
        held_out = cross_entropy(student.module(test_sounds), test_labels).item()
    weights = {f"{name}.{key}": value for name, model in (("teacher", teacher), ("student", student.module))
               for key, value in model.state_dict().items()}
    torch.save(weights, folder / f"rank_{rank}.pt")
    report = {"losses": losses, "held_out": held_out, "rates": rates}
    (folder / f"rank_{rank}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
