"""The models' initial values and outputs in C++ against Python's from the same seed, bit for bit.

usage: model_parity.py PROGRAM      (PROGRAM is the built model_parity)
Exit codes: 0 equal, 1 different, 3 the program failed, 77 skipped.
"""

import sys

from one_program import output_of, torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 256)
        self.fc2 = nn.Linear(256, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(16)
        self.fc = nn.Linear(784, 10)

    def forward(self, x):
        x = x.reshape(-1, 1, 28, 28)
        x = nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 2)
        x = nn.functional.max_pool2d(torch.relu(self.bn2(self.conv2(x))), 2)
        return self.fc(x.flatten(1))


def tensors(prefix, model):
    yield from ((prefix + name, value) for name, value in model.named_parameters())
    inputs = torch.rand(5, 784)
    yield prefix + "training", model(inputs)
    yield from ((prefix + name, value) for name, value in model.named_buffers())
    model.eval()
    yield prefix + "evaluation", model(inputs)


def of_python(seed):
    torch.manual_seed(seed)
    for prefix, make in (("mlp.", Mlp), ("conv_net.", ConvNet)):
        for name, value in tensors(prefix, make()):
            yield name, value.detach().float().reshape(-1)


def of_program(output):
    """The names in their order, and each one's values."""
    position = 0
    while position < len(output):
        end = output.index(b"\n", position)
        name, count = output[position:end].decode().split()
        position = end + 1 + 4 * int(count)
        yield name, torch.frombuffer(bytearray(output[end + 1:position]), dtype=torch.float32)


def main(program):
    compared = 0
    for seed in (0, 42):
        theirs = list(of_program(output_of(program, str(seed), timeout=60)))
        ours = list(of_python(seed))
        if [name for name, _ in theirs] != [name for name, _ in ours]:
            print(f"different names:\nPython: {[n for n, _ in ours]}\nC++:    {[n for n, _ in theirs]}")
            return 1
        for (name, expected), (_, found) in zip(ours, theirs):
            # As integers: -0.0 and NaN compare by their bits.
            if not torch.equal(expected.view(torch.int32), found.view(torch.int32)):
                print(f"different: {name}, seed {seed}: largest difference "
                      f"{(expected - found).abs().max().item() if expected.shape == found.shape else 'shape'}")
                return 1
            compared += expected.numel()
    print(f"{compared} numbers equal, bit for bit")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
