"""One rank of watch_overhead: trains as many epochs as each line of standard input says, and answers with nanoseconds.

usage: watch_overhead_rank.py MODEL DEVICE STORE RANK WORLD
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS = 64  # of an epoch; one of them is probed
CLASSES = 10


class Transformer(nn.Module):
    def __init__(self, width, layers=2, words=64):
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=4 * width, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, CLASSES)

    def forward(self, ids):
        return self.out(self.layers(self.words(ids)).mean(1))


def mlp(width):
    return nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, CLASSES))


def many(layers=1000):
    return nn.Sequential(nn.Linear(784, 8), *(nn.Linear(8, 8) for _ in range(layers - 2)), nn.Linear(8, CLASSES))


def floats(count):
    return torch.randn(count, 784)


def ids(count):
    return torch.randint(0, 64, (count, 32))


MODELS = {  # model, inputs, samples of a rank's step
    "mlp-784-2048-10": (lambda: mlp(2048), floats, 32), "transformer-128": (lambda: Transformer(128), ids, 16),
    "transformer-8": (lambda: Transformer(8), ids, 2), "linear-784-10": (lambda: nn.Linear(784, CLASSES), floats, 2),
    "2000-parameters": (many, floats, 2), "mlp-784-16384-10": (lambda: mlp(16384), floats, 2)}


def main(name, kind, store, rank, world_size):
    torch.set_num_threads(1)
    on_gpu = kind == "cuda"
    device = torch.device(kind, rank) if on_gpu else torch.device(kind)
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    torch.manual_seed(1)
    make, inputs, batch = MODELS[name]
    count = batch * world_size * STEPS
    data = TensorDataset(inputs(count), torch.randint(0, CLASSES, (count,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch, sampler=sampler, pin_memory=on_gpu)
    model = DistributedDataParallel(make().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    epoch = 0
    for line in sys.stdin:
        dist.barrier()
        start = time.monotonic_ns()
        for _ in range(int(line)):
            sampler.set_epoch(epoch)
            epoch += 1
            for batch_inputs, targets in loader:
                batch_inputs, targets = batch_inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(batch_inputs), targets)
                loss.backward()
                optimizer.step()
        last = loss.item()  # which waits for a GPU
        dist.barrier()
        print(time.monotonic_ns() - start, last, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
