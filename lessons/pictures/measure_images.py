"""The first training images of Fashion-MNIST and their classes, for what the pictures measure with torch."""

import gzip
import os
import pathlib

import torch

FOLDER = pathlib.Path(os.environ.get("LOCKSTEP_DATA", "/usr/share/datasets/fashion-mnist"))


def values(name, head, count):
    """`count` bytes of a file in the IDX format, behind its head."""
    with gzip.open(FOLDER / f"train-{name}-ubyte.gz") as file:
        return torch.frombuffer(bytearray(file.read(head + count)[head:]), dtype=torch.uint8)


def first(samples):
    """Pixels from 0 to 1 [samples, 784], and classes [samples]."""
    return values("images-idx3", 16, 784 * samples).view(samples, 784) / 255, values("labels-idx1", 8, samples).long()
