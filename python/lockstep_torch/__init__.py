"""Names what is wrong in a data-parallel training run: which ranks, since which step.

    lockstep watch -- torchrun --nproc-per-node 2 train.py      # nothing in train.py changes

or, in the program, before or after init_process_group:

    import lockstep_torch
    lockstep_torch.watch("traces")

What only the program knows is one call each, and does nothing where nobody records.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["diagnose", "intent", "loss", "metric", "watch"]


def watch(folder: str | os.PathLike[str]) -> None:
    """Records this process into `folder`, which all ranks share. Not collective; a second call does nothing."""
    from lockstep_torch import hooks
    hooks.watch(folder)


def diagnose(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What the detectors find in a folder of traces: world_size, recorded_ranks, findings, detectors, text, and
    left_out: which lines of the program could not be read, and why."""
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
