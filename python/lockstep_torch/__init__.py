"""Names what is wrong in a data-parallel training run: which ranks, since which step.

    lockstep watch -- torchrun --nproc-per-node 2 train.py      # nothing in train.py changes

or, in the program, before or after init_process_group:

    import lockstep_torch
    lockstep_torch.watch("traces")

or a part of it: with lockstep_torch.watch("traces"): ...

What only the program knows is one call each, and does nothing where nobody records.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["async_result", "average", "decision", "diagnose", "intent", "loss", "metric", "random_numbers",
           "training_state", "watch"]


def watch(folder: str | os.PathLike[str]) -> AbstractContextManager[None]:
    """Records this process into `folder`, which all ranks share, until the process ends or a `with` block around it is
    left. All ranks should leave it at the same step. Not collective; a second call does nothing."""
    from lockstep_torch import hooks
    return hooks.watch(folder)


def diagnose(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What the detectors find in a folder of traces: world_size, recorded_ranks, findings, detectors, text;
    left_out: which lines of the program could not be read, and why; and incomplete: what the traces lack of what the
    ranks did. Reads the folder, and writes nothing."""
    from lockstep_torch.extension import extension
    result: dict[str, Any] = extension().diagnose(os.fspath(folder))
    return result


def loss(per_sample: torch.Tensor) -> None:
    """The losses of this batch's samples, unreduced, before backward()."""
    from lockstep_torch import hooks
    hooks.tell("loss", per_sample.detach())


def metric(name: str, phase: str, total: float, count: float) -> None:
    """A figure as this rank holds it after whatever reduction it does: its mean is total / count."""
    from lockstep_torch import hooks
    hooks.tell("metric", name, phase, float(total), float(count))


def intent(global_batch: int = 0, loss_reduction: str = "", reference_lr: float = 0,
           reference_world_size: int = 0) -> None:
    """What the program means to do: samples an update over all ranks, "mean" or "sum" over them, and the learning rate
    that was found on `reference_world_size` ranks."""
    from lockstep_torch import hooks
    hooks.tell("intent", global_batch, loss_reduction, float(reference_lr), reference_world_size)


def decision(name: str, value: int) -> None:
    """A number by which this rank decides what it does next, each time that it decides; of "stop": whether its training
    ends."""
    from lockstep_torch import hooks
    hooks.tell("decision", name, int(value))


def random_numbers(ids: Sequence[int] | torch.Tensor, numbers: torch.Tensor) -> None:
    """Row i of `numbers` was drawn for the sample ids[i], to augment it. To be called in the process that trains: a
    loader's worker hands them on with its batch."""
    from lockstep_torch import hooks
    hooks.tell("random_numbers", [int(each) for each in ids], numbers.detach())


def average(name: str, own: torch.Tensor, count: int, used: torch.Tensor) -> None:
    """A mean over what the ranks hold: that of this rank's own `count` values, and the one that it goes on with."""
    from lockstep_torch import hooks
    hooks.tell("average", name, own.detach(), int(count), used.detach())


def async_result(name: str, moment: str, result: torch.Tensor) -> None:
    """The result of an operation that runs beside the program, where the program has "used" it, and once it has
    "waited" for the operation."""
    from lockstep_torch import hooks
    hooks.tell("async_result", name, moment, result.detach())


def training_state(moment: str, parts: dict[str, Any]) -> None:
    """What this rank holds when it has "saved" a checkpoint, on every rank and before torch.save; or has "resumed" from
    one. Weights, optimizers and schedules are added. `parts` has what else there is, such as "average" (averaged
    weights) or "rng_state": tensors, numbers, texts, and lists and dicts of them."""
    from lockstep_torch import states
    states.told(moment, parts)
