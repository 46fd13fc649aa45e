"""One rank of the step benchmark on Python's DDP; step.cpp is its twin, and says what is read and written.

usage: step_rank.py MODEL OPTIMIZER SIZES BATCH CLASSES PRECISION DEVICE STORE RANK WORLD
"""

import sys
import time

import models
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCHES = 4


def numbers(text):
    return [int(word) for word in text.split(",")]


def made(model, sizes, classes):
    if model == "mlp":
        return models.Mlp(sizes[0])
    if model == "resnet":
        return models.ResNet(sizes[1:], sizes[0])
    return models.Gpt(*sizes)


def optimizer_for(name, parameters):
    """foreach=False is LibTorch's form, one tensor at a time."""
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-4, foreach=False, fused=False)
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, foreach=False)


class Rank:
    def __init__(self, model, optimizer, sizes, batch, classes, precision, kind, rank):
        self.kind, self.bf16, self.classes, self.done = kind, precision == "bf16", classes, 0
        device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
        torch.manual_seed(1)
        self.model = DistributedDataParallel(made(model, sizes, classes).to(device))
        torch.manual_seed(2 + rank)
        shape = [BATCHES, *batch]
        tokens = model == "gpt"
        inputs = torch.randint(classes, shape) if tokens else torch.randn(shape)
        targets = torch.randint(classes, shape if tokens else [BATCHES, batch[0]])
        self.inputs, self.targets = inputs.to(device), targets.to(device)
        self.optimizer = optimizer_for(optimizer, self.model.parameters())

    def wait(self):
        if self.kind == "cuda":
            torch.cuda.synchronize()

    def forward(self):
        at = self.done % BATCHES
        self.done += 1
        with torch.autocast(self.kind, torch.bfloat16, enabled=self.bf16):
            outputs = self.model(self.inputs[at])
            return nn.functional.cross_entropy(outputs.view(-1, self.classes), self.targets[at].view(-1))

    def train(self, steps):
        dist.barrier()
        self.wait()
        start = time.monotonic_ns()
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = self.forward()
            loss.backward()
            self.optimizer.step()
        self.wait()
        took = time.monotonic_ns() - start
        print(f"{took} {loss.item():.9g}", flush=True)

    def phases(self, steps):
        ms = [0.0] * 4

        def timed(phase, work):
            start = time.monotonic_ns()
            result = work()
            self.wait()
            ms[phase] += (time.monotonic_ns() - start) / 1e6 / steps
            return result

        def whole():
            for _ in range(steps):
                self.optimizer.zero_grad()
                self.forward().backward()
                self.optimizer.step()

        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = timed(0, self.forward)
            timed(1, loss.backward)
            timed(2, self.optimizer.step)
        timed(3, whole)
        print(" ".join(f"{each:.6g}" for each in ms), flush=True)


def main(model, optimizer, sizes, batch, classes, precision, kind, store, rank, world_size):
    rank = int(rank)
    if kind == "cpu":
        torch.set_num_threads(1)
    else:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", init_method=f"file://{store}", rank=rank,
                            world_size=int(world_size))
    served = Rank(model, optimizer, numbers(sizes), numbers(batch), int(classes), precision, kind, rank)
    for line in sys.stdin:
        words = line.split()
        if words[0] == "phases":
            served.phases(int(words[1]))
        else:
            served.train(int(words[0]))
    del served
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
