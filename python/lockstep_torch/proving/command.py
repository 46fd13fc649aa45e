"""lockstep prove -- COMMAND ...: the runs, and what they show."""

from __future__ import annotations

import functools
import json
import pathlib
import textwrap
import time
from collections.abc import Callable
from typing import Any

from lockstep_torch.proving import again, neutral, one, restart, slope, swap
from lockstep_torch.proving.job import ABOUT, Job, Run, Wrong
from lockstep_torch.proving.relations import (
    FAILS,
    HELD,
    ROUNDING,
    UNTOLD,
    Answer,
    bounds_of,
    of_ranks,
    refusals,
    untold,
)

MEANS = {"slope": "the gradient of an update is the slope of the ranks' mean loss",
         "one": "one process on the same batches computes the same gradients",
         "swap": "ranks that are given each other's batches compute the same gradients",
         "restart": "a job that is started again goes on as the stopped one"}
RELATIONS = tuple(MEANS)
Says = Callable[..., None]


def plain_run(job: Job) -> Run:
    """Changed as little as it takes to run."""
    plain = job.run("as it is")
    error = plain.error
    for wide, stands_in, how in ((True, True, "as it is, with the CPU where it asks for CUDA"),
                                 (False, False, "as it is, in its own precision"),
                                 (False, True, "in its own precision, with the CPU where it asks for CUDA")):
        if plain.error and not plain.uneven and not (stands_in and job.device == "cuda"):
            job.wide, job.stands_in = wide, stands_in
            plain = job.run(how)
    if plain.error and not plain.uneven:
        raise Wrong(f"the job itself fails: {error}")
    return plain


def prove(command: list[str], steps: int, world_size: int, relations: tuple[str, ...], batch: tuple[str, ...],
          limit: float, device: str, say: Says) -> dict[str, Any]:
    """All that was found. Raises Wrong where nothing could be made."""
    began = time.monotonic()
    job = Job(command, pathlib.Path.cwd(), steps, world_size, limit, device)
    job.said = say
    batch = tuple(name.lstrip("-").replace("-", "_") for name in batch)
    try:
        plain = plain_run(job)
        job.world_size = len(plain.ranks)
        say(f"a run takes {plain.seconds:.0f} s, and about {ABOUT} are made")
        why = why_not(job, plain)
        noise = again.Noise(0, why)
        if not why and set(relations) - {restart.NAME}:
            noise = again.measured(job, plain)
        bounds = bounds_of(job.wide, noise.apart)
        made = functools.cache(lambda: neutral.made(job, plain))
        answers = []
        for name in relations:
            if plain.uneven or (noise.why and name != restart.NAME):
                answers.append(untold(name, noise.why))
            elif name == slope.NAME:
                answers.append(slope.prove(job, plain, bounds))
            elif name == one.NAME:
                answers.append(one.prove(job, plain, made, bounds, batch))
            elif name == swap.NAME:
                answers.append(swap.prove(job, made, bounds))
            else:
                answers.append(restart.prove(job, plain, made))
        reconcile(answers)
        return {"command": command, "world_size": job.world_size, "device": device, "wide": job.wide,
                "stands_in": job.stands_in,
                "noise": noise.apart, "notes": notes(job, noise.apart), "updates": len(plain.ranks[0]["updates"]),
                "runs": job.runs,
                "seconds": round(time.monotonic() - began, 1),
                "relations": [{"must_hold": MEANS[each.relation], **vars(each)} for each in answers]}
    finally:
        job.leave()


def why_not(job: Job, plain: Run) -> str:
    """Why gradients are not compared; empty: they are."""
    if plain.uneven:
        return plain.error
    if job.world_size < 2:
        return "the job has one rank"
    return next(refusals(plain.ranks), "")


def notes(job: Job, noise: float) -> list[str]:
    return [text for is_so, text in (
        (job.stands_in, "the program asks for CUDA, and got the CPU and Gloo"),
        (not job.wide, "the program does not run with numbers of 64 bits, so it is proved in its own precision"),
        (noise > ROUNDING, f"two runs of it are {noise:.2g} apart")) if is_so]


def reconcile(answers: list[Answer]) -> None:
    """A program may scale its loss or its gradients by what it likes, such as a loss divided by the number of ranks
    whose gradients are summed, and hold a part of its loss constant in ways that are not seen. Whether that is right is
    said by one process."""
    slope, one = (next((each for each in answers if each.relation == name), None) for name in ("slope", "one"))
    if slope is None or slope.standing != FAILS or slope.apart:
        return
    if one is not None and one.standing == HELD:
        slope.says += "; so it is in one process, so the program may mean it"
        slope.standing, slope.pitfalls = HELD if slope.factor is not None else UNTOLD, []
    elif one is None or one.standing == UNTOLD:
        slope.says += "; whether the program means it is not known, since one process was not compared"
        slope.standing = UNTOLD


def text_of(found: dict[str, Any]) -> str:
    lines = [f"{found['updates']} updates on {found['world_size']} ranks, {found['runs']} runs, "
             f"{found['seconds']:.0f} s"]
    lines += [f"  note    {note}" for note in found["notes"]]
    for each in found["relations"]:
        standing = {HELD: "holds  ", FAILS: "FAILS  ", UNTOLD: "?      "}[each["standing"]]
        lines.append(f"  {standing} {each['must_hold']}")
        line = f" ({each['line']})" if each["line"] else ""
        where = (f"since update {each['step']}{line}, {of_ranks(each['ranks'], found['world_size'])}: "
                 if each["standing"] == FAILS and each["step"] is not None else "")
        lines += textwrap.wrap(where + each["says"], 76, initial_indent=" " * 12, subsequent_indent=" " * 12)
        if each["pitfalls"]:
            lines += textwrap.wrap("what explains it: " + ", ".join(each["pitfalls"]), 76, initial_indent=" " * 12,
                                   subsequent_indent=" " * 12)
        for note in each["neutral"]:
            lines += textwrap.wrap("in these runs: " + note, 76, initial_indent=" " * 12, subsequent_indent=" " * 12)
    return "\n".join(lines) + "\n"


def code_of(found: dict[str, Any]) -> int:
    """As compare's: 1 where a relation fails, 3 where none could be told, else 0."""
    standings = [each["standing"] for each in found["relations"]]
    return 1 if FAILS in standings else 3 if HELD not in standings else 0


def json_of(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=2) + "\n"
