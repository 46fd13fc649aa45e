"""What a twin runs on: one rank of a small job on Gloo, with Fashion-MNIST, and what it writes down.

A twin reports as its author would: the loss of each step, a metric after an evaluation. Beside that it writes
figures, by which its oracle tells whether the fault is there; the means under test do not see them.
"""

import datetime
import gzip
import os
import pathlib
import time

import numpy
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

WORLD = 2
TIMEOUT_S = 4  # of a collective
BARRIER_TIMEOUT_S = 2  # of the monitored barrier: it speaks first
SAMPLES, TEST_SAMPLES, BATCH, EPOCHS, RATE = 1024, 255, 16, 2, 0.1
FOLDERS = (os.environ.get("LOCKSTEP_DATA"), "/usr/share/datasets/fashion-mnist")


def read_idx(name, limit):
    """The first entries of one of Fashion-MNIST's four files; nothing where they are not installed."""
    for folder in filter(None, FOLDERS):
        path = pathlib.Path(folder) / name
        if path.exists():
            with gzip.open(path) as file:
                head = 16 if "images" in name else 8
                each = 784 if "images" in name else 1
                return numpy.frombuffer(file.read(head + limit * each), numpy.uint8, offset=head).reshape(limit, -1)
    return None


def load_data():
    """(inputs, targets) for training and for evaluation, as arrays; made-up ones where there is no data set."""
    parts = []
    for prefix, limit, seed in (("train", SAMPLES, 1), ("t10k", TEST_SAMPLES, 2)):
        images, labels = (read_idx(f"{prefix}-{kind}.gz", limit) for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
        if images is None:
            images = numpy.random.default_rng(seed).integers(0, 256, (limit, 784))
            labels = (images @ numpy.random.default_rng(3).normal(size=(784, 10))).argmax(1)
        parts.append((images.astype(numpy.float32) / 255, labels.reshape(-1).astype(numpy.int64)))
    return parts


class Job:
    """One rank."""

    def __init__(self, rank, seed, folder, listener, data, barrier_each_step=False):
        self.rank, self.seed, self.folder, self.listener = rank, seed, folder, listener
        self.barrier_each_step = barrier_each_step
        (self.inputs, self.targets), (self.test_inputs, self.test_targets) = (
            tuple(map(torch.from_numpy, part)) for part in data)
        self.losses, self.metrics, self.figures, self.steps = [], [], {}, 0
        torch.manual_seed(seed)

    def init(self):
        """init_process_group, as env:// does it, on a port that nobody else can have taken."""
        timeout = datetime.timedelta(seconds=TIMEOUT_S)
        store = dist.TCPStore("127.0.0.1", self.listener.getsockname()[1], WORLD, self.rank == 0, timeout,
                              master_listen_fd=self.listener.detach() if self.rank == 0 else None)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=WORLD, timeout=timeout)

    def each_step(self, batches):
        """A training loop's batches. The monitored barrier stands where it sees most: after a batch was fetched."""
        for batch in batches:
            if self.barrier_each_step:
                dist.monitored_barrier(timeout=datetime.timedelta(seconds=BARRIER_TIMEOUT_S), wait_all_ranks=True)
            yield batch

    def step(self, loss):
        """The end of a training step; the program prints its loss."""
        self.steps += 1
        self.losses.append(float(torch.as_tensor(loss).detach()))

    def report(self, metric):
        """A metric as the program prints it."""
        self.metrics.append(float(metric))

    def figure(self, **values):
        self.figures.update(values)

    def sampler(self, **options):
        return DistributedSampler(range(SAMPLES), WORLD, self.rank, seed=self.seed, **options)

    def batches(self, ids, size=BATCH):
        """(inputs, targets) of these samples."""
        ids = list(ids)
        for begin in range(0, len(ids), size):
            part = ids[begin:begin + size]
            yield self.inputs[part], self.targets[part]


def mlp(hidden=32):
    return torch.nn.Sequential(torch.nn.Linear(784, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10))


def with_batch_norm():
    return torch.nn.Sequential(torch.nn.Linear(784, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(),
                               torch.nn.Linear(32, 10))


def wrap(model, **options):
    return torch.nn.parallel.DistributedDataParallel(model, **options)


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), **{"lr": RATE, **options})


def broadcast_parameters(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)


def mean_by_hand(model):
    """The gradients' mean over the ranks, a parameter at a time."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= WORLD


def train(job, model, optimizer=None, *, epochs=EPOCHS, forward=None, loss_of=torch.nn.functional.cross_entropy,
          after_backward=lambda model: None, sampler=None):
    """The plain loop, for twins whose fault is elsewhere."""
    optimizer, sampler, forward = optimizer or sgd(model), sampler or job.sampler(), forward or model
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in job.each_step(job.batches(sampler)):
            optimizer.zero_grad()
            loss = loss_of(forward(inputs), targets)
            loss.backward()
            after_backward(model)
            optimizer.step()
            job.step(loss)


def agreed_training(job, **options):
    """A model that starts and stays equal on all ranks, by hand: no wrapper, so that DETAIL can be tried on it."""
    model = mlp()
    broadcast_parameters(model)
    train(job, model, after_backward=mean_by_hand, **options)
    return model


def checksum(tensors):
    """A figure that differs when any number does."""
    return [float(tensor.detach().double().sum()) for tensor in tensors]


def sketch(tensors):
    """A linear figure of gradients: a mean of sketches is the sketch of the mean."""
    generator = torch.Generator().manual_seed(5)
    return sum(float(tensor.detach().double().flatten() @ torch.randn(tensor.numel(), generator=generator).double())
               for tensor in tensors)


def gradient(model):
    return sketch(parameter.grad for parameter in model.parameters() if parameter.grad is not None)


def local_gradient(model, inputs, targets, reduction="mean"):
    """What backward() of this rank's own loss gives, before any reduction; leaves the model alone."""
    loss = torch.nn.functional.cross_entropy(model(inputs), targets, reduction=reduction)
    return sketch(torch.autograd.grad(loss, list(model.parameters())))


def sleep_past_the_timeout():
    time.sleep(TIMEOUT_S + 1.5)
