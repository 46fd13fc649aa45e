"""What a job that is started again holds before its first update is what the stopped one held."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from lockstep_torch.proving.job import Job, Run
from lockstep_torch.proving.neutral import Neutral
from lockstep_torch.proving.relations import EXACT, FAILS, HELD, ROUNDING, Answer, distance, near, untold
from lockstep_torch.proving.saving import stop_at

NAME = "restart"
LIMIT_S = 40.0  # of a run, beside what the first one took
FAR = 1 << 30  # updates


def same(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(distance(x, y, 0) <= ROUNDING for x, y in zip(a, b, strict=True))


def held_at(rank: dict[str, Any], optimizer: int) -> list[tuple[int, dict[str, Any]]]:
    """What the optimizer held before each of its updates, with its number, and after the last."""
    own = [update for update in rank["updates"] if update["optimizer"] == optimizer]
    numbered = [(step, update) for step, update in enumerate(own) if update["before"]]
    return [*numbered, (len(own), rank["last"][optimizer])]


def prove(job: Job, plain: Run, made: Callable[[], Neutral]) -> Answer:
    drawn = any(rank["sites"] for rank in plain.ranks)
    sites = made().sites if drawn and not plain.error else []  # none, where they draw samples
    limit = min(job.limit, LIMIT_S + plain.seconds)
    first = job.run("until it has saved something", saves=True, steps=FAR, still=sites, keeps_work=True, limit=limit)
    if first.error:
        return untold(NAME, first.error)
    saved = {name for rank in first.ranks for name in rank["saved"]}
    if not saved:
        return untold(NAME, f"it saves nothing in the first {len(first.ranks[0]['updates'])} updates")
    written = written_since(first)
    again = job.run("started again where it was stopped", again=first.folder, steps=1, still=sites, limit=limit)
    if again.error:
        return untold(NAME, f"it fails when it is started again: {again.error}")
    reads = any(path in written for rank in again.ranks for path in rank["loaded"])
    answers = [compared(before, after, reads) for before, after in zip(first.ranks, again.ranks, strict=False)]
    failing = [(rank, each) for rank, each in enumerate(answers) if each.standing == FAILS]
    if not failing:
        return next((each for each in answers if each.standing != HELD), answers[0])
    answer = failing[0][1]
    answer.ranks = [rank for rank, _ in failing]
    return answer


def written_since(run: Run) -> set[str]:
    """What is in its working folder since the first checkpoint was begun: data that it wrote earlier are none."""
    began, work = stop_at(run.folder).stat().st_mtime_ns, run.folder / "work"
    return {str(file.relative_to(work)) for file in work.rglob("*") if file.lstat().st_mtime_ns >= began}


def compared(before: dict[str, Any], after: dict[str, Any], reads: bool) -> Answer:
    """On one rank. Of a job in stages a start may make the later ones' optimizers only."""
    told: Answer | None = None
    for number in range(len(after["names"])):
        own = [update for update in after["updates"] if update["optimizer"] == number][:1]
        held = [(optimizer, step, there) for optimizer in range(len(before["names"]))
                for step, there in held_at(before, optimizer)
                if own and [one.shape for one in there["before"]] == [one.shape for one in own[0]["before"]]]
        if not held:
            continue
        begins = [each for each in held if same(each[2]["before"], own[0]["before"])]
        if all(optimizer == step == 0 for optimizer, step, _ in begins) and not reads:
            return untold(NAME, "it begins anew, and reads nothing of what was saved")
        if not begins:
            return Answer(NAME, FAILS, "it reads what was saved, and goes on with parameters that the stopped one did "
                          "not hold before any of its last updates", pitfalls=["module-prefix"])
        if all(optimizer == step == 0 for optimizer, step, _ in begins):
            return Answer(NAME, FAILS, "it reads what was saved, and goes on with the parameters of its start", step=0,
                          pitfalls=["module-prefix"])
        answers = [differs(before, optimizer, step, there, own[0])
                   for optimizer, step, there in reversed(begins) if optimizer or step]
        if all(answers):
            told = told or answers[0]
    return told or Answer(NAME, HELD, "it goes on with the parameters, the optimizer's state and options, and the "
                          "batches of the stopped one", looked_at=1)


def is_same(a: Any, b: Any) -> bool:
    return near(a, b, ROUNDING) if isinstance(a, float) and isinstance(b, float) else bool(a == b)


def differs(before: dict[str, Any], optimizer: int, step: int, a: dict[str, Any], b: dict[str, Any]) -> Answer | None:
    """From what the rank held before this update of the optimizer."""
    def fails(says: str, *pitfalls: str) -> Answer:
        return Answer(NAME, FAILS, f"it goes on at update {step}, {says}", step=step, pitfalls=list(pitfalls))
    if len(a["digest"]) != len(b["digest"]) or len(a["options"]) != len(b["options"]):
        return fails("with other parameters or groups of the optimizer", "optimizer-state-missing")
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
    if "rows" not in a:
        return None  # the last update was made, and the next one is not known
    if samples(a) and samples(b) and samples(a) != samples(b):
        return of_batches(before, optimizer, step, samples(b), fails)
    if near(a["loss"], b["loss"], EXACT):
        return None
    losses = f"the loss was {a['loss']:.6g}, and is {b['loss']:.6g}"
    if not samples(a) or not samples(b):
        return untold(NAME, f"it goes on at update {step} with the same parameters, and {losses}; no module with "
                      "parameters was called, so its batches are not known")
    if a["drew"]:  # a start may draw more before it begins
        return Answer(NAME, HELD, f"it goes on at update {step} as the stopped one, but for its random numbers: with "
                      f"the same parameters and batches {losses}", looked_at=1)
    return fails("with something else that the loss goes by: with the same parameters and batches, and no random "
                 f"numbers, {losses}")


def samples(update: dict[str, Any]) -> collections.Counter[str]:
    """By content."""
    return collections.Counter(f"{float(row):.9g}" for rows in update["rows"] for row in rows)


def of_batches(before: dict[str, Any], optimizer: int, step: int, given: collections.Counter[str],
               fails: Callable[..., Answer]) -> Answer:
    """It goes on with other samples than the stopped one had next."""
    if unseeded := before["unseeded"]:
        return Answer(NAME, HELD, f"it goes on at update {step} as the stopped one, but for the order of its samples, "
                      f"which each start draws anew: it does not seed {', '.join(unseeded)}", looked_at=1)
    own = [update for update in before["updates"] if update["optimizer"] == optimizer]
    again = [number for number, update in enumerate(own) if samples(update) == given]
    if again:
        return fails(f"with the batch of update {again[0]} in place of the next one", "resume-mid-epoch-replays",
                     "resume-repeats-epoch")
    return untold(NAME, f"it goes on at update {step} with other samples than the stopped one had next: they may be in "
                  "another order, or some may be left out")
