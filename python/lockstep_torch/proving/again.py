"""The program's own noise: how far apart two runs of the same command are."""

from __future__ import annotations

from typing import NamedTuple

from lockstep_torch.proving.job import Job, Run
from lockstep_torch.proving.relations import NOISY, apart, losses_apart


class Noise(NamedTuple):
    apart: float  # relative: the largest of a loss or a gradient
    why: str  # nothing can be told of gradients; empty: something can


def measured(job: Job, plain: Run) -> Noise:
    """Each update begins with the parameters of the first run, so the noise of one is not that of those before it."""
    twice = "the program does not do the same twice"
    run = job.run("once more", force=str(plain.folder))
    if run.error:
        return Noise(1, f"{twice}: the second time, {run.error}")
    largest = 0.0
    for rank, (one, other) in enumerate(zip(plain.ranks, run.ranks, strict=True)):
        if len(one["updates"]) > len(other["updates"]):
            return Noise(1, f"{twice}: rank {rank} made {len(one['updates'])} updates in one run and "
                         f"{len(other['updates'])} in another")
        for number, (a, b) in enumerate(zip(one["updates"], other["updates"], strict=False)):
            if a["optimizer"] != b["optimizer"] or len(a["unclipped"]) != len(b["unclipped"]):
                return Noise(1, f"{twice}: on rank {rank} update {number} is another optimizer's")
            losses, gradients = losses_apart(a, b), apart(a["unclipped"], b["unclipped"])
            largest = max(largest, losses, gradients)
            if largest > NOISY:
                what = (f"loss before update {number} is {a['loss']:.9g} in one run and {b['loss']:.9g} in another"
                        if losses > NOISY else f"gradient of update {number} is {gradients:.2g} apart in two runs")
                return Noise(largest, f"{twice}: on rank {rank} the {what}; seed what it draws")
    return Noise(largest, "")
