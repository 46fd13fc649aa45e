"""What the awkward programs share: a small model, its training, and how figures are printed to the bit."""

import functools
import gc
import os

import torch
from state import hash_of


def started(**how):
    """How a program is started, where that is not `python run.py KIND NAME`: options of Python (`python`), that many
    processes (`ranks`), torchrun with so many (`torchrun`, `restarts`), in the environment (`variables`). `ends`: its
    exit codes, where not 0. `quick`: in the quick tier, too. `says`: what the recorder is to say of it (a pattern).
    `finds`: what is found in it (a pattern). `unrecorded`: there is nothing to record, or no way to."""
    def decorate(program):
        program.how = how
        return program
    return decorate


quick = functools.partial(started, quick=True)


def mlp():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def batch(step=0):
    """Other samples on each rank and in each step."""
    rank = int(os.environ.get("RANK", "0"))
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(1_000 * rank + step))


def show(*values):
    print(*map(shown, values), flush=True)


def shown(value):
    if isinstance(value, torch.Tensor):
        value = torch.view_as_real(value.detach()) if value.is_complex() else value.detach()
        numbers = [float(each).hex() for each in value.to_dense().double().reshape(-1).tolist()]
        return numbers[0] if len(numbers) == 1 else " ".join(numbers) if len(numbers) <= 16 else hash_of(numbers)
    return value.hex() if isinstance(value, float) else value


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05)


def loss_of(model, step=0):
    return model(batch(step)).pow(2).mean()


def train(model, optimizer=None, steps=5, loss_of=loss_of, each=None):
    """`each` is called with the step's number after its update."""
    optimizer = optimizer or sgd(model)
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        show(loss)
        if each:
            each(step)
    return model


def gone(*references):
    """Whether what they are of is freed."""
    gc.collect()
    show([each() is None for each in references])
