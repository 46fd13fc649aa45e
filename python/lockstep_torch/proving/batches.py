"""What a rank trains on: a number for each row that a model is given, the batches of loaders, and one process that is
given the batches of all ranks."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from lockstep_torch import looking
from lockstep_torch.proving.saving import READ, WRITE
from lockstep_torch.proving.steps import Steps, weights
from lockstep_torch.proving.still import Draws

MOST_BYTES = 1 << 29  # of batches that are kept
UNEVEN = 0  # what shorter rows are filled up with, where ranks' rows are not as long


def rows_of(inputs: Any) -> torch.Tensor | None:
    """A number for each row: a random projection of all tensors that have as many rows as the first."""
    tensors = [one for one in looking.tensors_in(inputs)
               if one.dim() > 0 and one.numel() > 0 and one.layout == torch.strided and not one.is_quantized
               and not hasattr(one, "to_local")]
    if not tensors:
        return None
    number = len(tensors[0])
    found = torch.zeros(number, dtype=torch.float64)
    for place, one in enumerate(each for each in tensors if len(each) == number):
        numbers = one.detach().to("cpu", torch.float64).reshape(number, -1).nan_to_num(7.7, 8.8, -8.8)
        found += (place + 1) * (numbers @ weights(numbers.shape[1]))
    return found


def in_a_transform() -> bool:
    """One of torch.func's, in which a tensor stands for many."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def watch_rows(steps: Steps) -> None:
    """Of the outermost calls of modules that have parameters, with gradients."""
    modules: Any = torch.nn.Module
    original = modules.__call__
    depth = 0

    @functools.wraps(original)
    def call(self: Any, *inputs: Any, **named: Any) -> Any:
        nonlocal depth
        trains = torch.is_grad_enabled() and not in_a_transform()
        if depth == 0 and trains and any(one.requires_grad for one in self.parameters()):
            steps.tilt.start()
            for name, one in self.named_parameters():
                steps.names.setdefault(id(one), name.removeprefix("module."))
            rows = rows_of([*inputs, *named.values()])
            if rows is not None:
                steps.rows.append(rows)
        depth += 1
        try:
            return original(self, *inputs, **named)
        finally:
            depth -= 1
    modules.__call__ = call


class Batches:
    """Of each loader, in the order in which they are made, and of each of its iterators: the batches it gave."""

    def __init__(self, steps: Steps, draws: Draws) -> None:
        self.steps, self.draws = steps, draws
        self.loaders = 0
        self.kept: dict[tuple[int, int], list[bytes]] = {}
        self.bytes = 0
        self.given: Callable[[], list[dict[tuple[int, int], list[bytes]]]] = list  # of ranks, in place of its own
        self.joins = True  # the ranks' batches, without anything that one batch has in another way
        self.keeps = False
        self.samples = False  # a batch has several numbers for each of them

    def install(self) -> None:
        loader: Any = DataLoader
        begin, iterate = loader.__init__, loader.__iter__

        @functools.wraps(begin)
        def begins(self: Any, *arguments: Any, **options: Any) -> None:
            begin(self, *arguments, **options)
            self.__dict__["_proved"] = [batches.loaders, 0]
            batches.loaders += 1
        batches = self

        @functools.wraps(iterate)
        def iterates(self: Any) -> Any:
            proved = self.__dict__.get("_proved")
            if proved is None:
                return iterate(self)
            key = (proved[0], proved[1])
            proved[1] += 1
            parts = [of_rank.get(key) for of_rank in batches.given()]
            if parts and all(parts):
                return batches.joined(key[0], parts)
            with batches.draws.aside():
                own = iterate(self)
            return batches.told(key, own)
        loader.__init__, loader.__iter__ = begins, iterates

    def told(self, key: tuple[int, int], batches: Any) -> Iterator[Any]:
        kept = self.kept.setdefault(key, [])
        end = object()
        while True:
            with self.draws.aside():
                batch = next(batches, end)
            if batch is end:
                return
            self.steps.given.append(key[0])
            self.samples = self.samples or any(one.dim() > 1 for one in looking.tensors_in(batch))
            written = io.BytesIO()
            if self.bytes < MOST_BYTES and self.keeps:
                with contextlib.suppress(Exception):  # of a class that cannot be written
                    WRITE(batch, written)
                    self.bytes += written.tell()
                    kept.append(written.getvalue())
            yield batch

    def joined(self, loader: int, parts: list[Any]) -> Iterator[Any]:
        for batches in zip(*parts, strict=False):
            self.steps.given.append(loader)
            parts = [READ(io.BytesIO(one), weights_only=False) for one in batches]
            self.joins = self.joins and all(is_like(parts[0], one) for one in parts[1:])
            yield join(parts) if len(parts) > 1 else parts[0]

    def of_training(self) -> dict[tuple[int, int], list[bytes]]:
        return {key: kept for key, kept in self.kept.items() if key[0] in self.steps.trained}


def is_like(one: Any, other: Any) -> bool:
    """Whether two batches become one without filling up, or choosing between, what they hold."""
    if looking.is_tensor(one):
        return one.shape[1:] == other.shape[1:] and (one.dim() > 0 or torch.equal(one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_like(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)) and one and isinstance(one[0], (torch.Tensor, list, tuple, dict)):
        return len(one) == len(other) and all(map(is_like, one, other))
    return isinstance(one, (list, tuple)) or bool(one == other)


def join(parts: list[Any]) -> Any:
    """The ranks' batches as one, rank after rank."""
    first = parts[0]
    if looking.is_tensor(first):
        if first.dim() == 0:
            return first
        longest = [max(sizes) for sizes in zip(*(one.shape[1:] for one in parts), strict=True)]
        filled = []
        for one in parts:
            space = one.new_full((len(one), *longest), UNEVEN)
            space[tuple(slice(0, size) for size in one.shape)] = one
            filled.append(space)
        return torch.cat(filled)
    if isinstance(first, dict):
        return type(first)({name: join([one[name] for one in parts]) for name in first})
    if isinstance(first, (list, tuple)):
        if first and not isinstance(first[0], (torch.Tensor, list, tuple, dict)):
            return [each for one in parts for each in one]
        joined = [join(list(each)) for each in zip(*parts, strict=True)]
        return type(first)(*joined) if hasattr(first, "_fields") else type(first)(joined)
    return first
