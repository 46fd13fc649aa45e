"""What a job that is started again holds before its first update is what the stopped one held."""

from __future__ import annotations

from typing import Any

import torch

from lockstep_torch.proving.job import Job, Run
from lockstep_torch.proving.relations import EXACT, FAILS, HELD, ROUNDING, Answer, distance, near, untold
from lockstep_torch.proving.saving import stop_at

NAME = "restart"
LIMIT_S = 40.0  # of a run
FAR = 1 << 30  # updates


def same(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(distance(x, y, 0) <= ROUNDING for x, y in zip(a, b, strict=True))


def held_at(rank: dict[str, Any], optimizer: int) -> list[tuple[int, dict[str, Any]]]:
    """What the optimizer held before each of its updates, with its number, and after the last."""
    own = [update for update in rank["updates"] if update["optimizer"] == optimizer]
    numbered = [(step, update) for step, update in enumerate(own) if update["before"]]
    return [*numbered, (len(own), rank["last"][optimizer])]


def prove(job: Job, plain: Run) -> Answer:
    sites = sorted({site for rank in plain.ranks for site in rank["sites"]})
    first = job.run("until it has saved something", saves=True, steps=FAR, still=sites, keeps_work=True,
                    limit=min(job.limit, LIMIT_S))
    if first.error:
        return untold(NAME, first.error)
    saved = {name for rank in first.ranks for name in rank["saved"]}
    if not saved:
        return untold(NAME, f"it saves nothing in the first {len(first.ranks[0]['updates'])} updates")
    written = written_since(first)
    again = job.run("started again where it was stopped", again=first.folder, steps=1, still=sites,
                    limit=min(job.limit, LIMIT_S))
    if again.error:
        return untold(NAME, f"it fails when it is started again: {again.error}")
    reads = any(path in written for rank in again.ranks for path in rank["loaded"])
    answers = [compared(a, b, reads) for a, b in zip(first.ranks, again.ranks, strict=False)]
    failing = [(rank, each) for rank, each in enumerate(answers) if each.standing == FAILS]
    if not failing:
        return answers[0]
    answer = failing[0][1]
    answer.ranks = [rank for rank, _ in failing]
    return answer


def written_since(run: Run) -> set[str]:
    """What is in its working folder since the first checkpoint was begun: data that it wrote earlier are none."""
    began, work = stop_at(run.folder).stat().st_mtime_ns, run.folder / "work"
    return {str(file.relative_to(work)) for file in work.rglob("*") if file.lstat().st_mtime_ns >= began}


def compared(before: dict[str, Any], after: dict[str, Any], reads: bool) -> Answer:
    """On one rank."""
    for optimizer in range(min(len(before["names"]), len(after["names"]))):
        own = [update for update in after["updates"] if update["optimizer"] == optimizer]
        held = held_at(before, optimizer)
        if not own:
            continue
        begins = [(step, each) for step, each in held if same(each["before"], own[0]["before"])]
        if not begins and not reads:
            return untold(NAME, "it begins anew, and reads nothing of what was saved")
        if not begins:
            return Answer(NAME, FAILS, "it reads what was saved, and goes on with parameters that the stopped one did "
                          "not hold before any of its last updates", pitfalls=["module-prefix"])
        step, there = begins[-1]
        if step == 0 and reads:
            return Answer(NAME, FAILS, "it reads what was saved, and goes on with the parameters of its start", step=0,
                          pitfalls=["module-prefix"])
        if step == 0:
            return untold(NAME, "it begins anew, and reads nothing of what was saved")
        if answer := differs(there, own[0], step, step == held[-1][0]):
            return answer
    return Answer(NAME, HELD, "it goes on with the parameters, the optimizer's state and options, and the batches of "
                  "the stopped one", looked_at=1)


def is_same(a: Any, b: Any) -> bool:
    return near(a, b, ROUNDING) if isinstance(a, float) and isinstance(b, float) else bool(a == b)


def differs(a: dict[str, Any], b: dict[str, Any], step: int, at_the_end: bool) -> Answer | None:
    def fails(says: str, *pitfalls: str) -> Answer:
        return Answer(NAME, FAILS, f"it goes on at update {step}, {says}", step=step, pitfalls=list(pitfalls))
    for place, (x, y) in enumerate(zip(a["digest"], b["digest"], strict=True)):
        for name in sorted({*x, *y}):
            if name not in x or name not in y or not near(x[name], y[name], EXACT):
                return fails(f"with another {name} of the optimizer's parameter {place}: {x.get(name)} before, "
                             f"{y.get(name)} now", "optimizer-state-missing")
    for place, (x, y) in enumerate(zip(a["options"], b["options"], strict=True)):
        for name in sorted({*x, *y}):
            if not is_same(x.get(name), y.get(name)):
                return fails(f"with another {name} of the optimizer's group {place}: {x.get(name)} before, "
                             f"{y.get(name)} now",
                             "scheduler-or-rng-state-missing" if name == "lr" else "optimizer-state-missing")
    if at_the_end:
        return None
    rows = [torch.cat(each["rows"]).sort().values if each["rows"] else None for each in (a, b)]
    if rows[0] is not None and rows[1] is not None and distance(rows[0], rows[1], 0) > EXACT:
        return fails("with other batches than the stopped one had next", "resume-mid-epoch-replays",
                     "resume-repeats-epoch")
    if not near(a["loss"], b["loss"], EXACT):
        return Answer(NAME, HELD, f"it goes on at update {step} as the stopped one, but for its random numbers: with "
                      f"the same parameters and batches the loss was {a['loss']:.6g}, and is {b['loss']:.6g}",
                      looked_at=1)
    return None
