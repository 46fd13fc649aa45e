"""Ranks that are given each other's batches compute the same gradients: what a rank does to its batch does not depend
on which rank it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep_torch.proving.job import Job
from lockstep_torch.proving.neutral import Neutral, short
from lockstep_torch.proving.relations import (
    FAILS,
    HELD,
    Answer,
    Bounds,
    Gap,
    Ranks,
    all_same_rows,
    by_gradients_apart,
    distance,
    draw_apart,
    first_apart,
    first_gap,
    line_of,
    near,
    rounds_of_all,
    rows_in,
    untold,
)

NAME = "swap"


def prove(job: Job, made: Callable[[], Neutral], bounds: Bounds) -> Answer:
    neutral = made()
    there = neutral.run.ranks[::-1]  # rank r goes on as the rank did that stands there at place r
    if why := neutral.why or neutral.own or why_not(there, bounds.same[0]):
        return untold(NAME, why)
    run = job.run(f"{job.world_size} ranks, with each other's batches", still=neutral.sites, swaps=True,
                  force=str(neutral.run.folder), batches=str(neutral.run.folder))
    if run.error:
        return untold(NAME, f"with each other's batches the job fails: {run.error}")
    answer = compared(there, run.ranks, *bounds.same)
    answer.neutral = neutral.notes()
    return answer


def why_not(ranks: Ranks, same: float) -> str:
    """Why nothing would be learned; empty: something would."""
    loaders = [sorted(rank["batches"]) for rank in ranks]
    if not all(loaders):
        return "the batches that the ranks train on are not those that a DataLoader gave"
    if any(each != loaders[0] for each in loaders):
        return "the ranks take their batches from other loaders"
    if all_same_rows(ranks) is not None:
        return "each rank is given the same rows"
    if first_apart(ranks) is not None:
        return "the ranks hold different parameters"
    return "the ranks update by different gradients" if by_gradients_apart(ranks, same) else ""


def compared(there: Ranks, here: Ranks, within: float, clear: float) -> Answer:
    """Up to the first update whose gradient is another one, or whose rows are not those of the batches."""
    world_size, equal = len(there), 0
    for each in sorted((each for all_ranks in rounds_of_all([*there, *here]).values() for each in all_ranks),
                       key=lambda each: each[0][0]):
        before, after = each[:world_size], each[world_size:]
        other = first_gap(there[0], before[0][1], after[0][1], within)
        rows = [are_same(a, b, within) for a, b in zip(before, after, strict=True)]
        losses = [(a[1][0]["loss"], b[1][0]["loss"]) for a, b in zip(before, after, strict=True)]
        if other is None and False not in rows and (None not in rows or all(near(*each, within) for each in losses)):
            equal += 1
        elif other is not None and None not in rows and all(
                same or makes_others(there[rank], before[world_size - 1 - rank], after[rank], within)
                for rank, same in enumerate(rows)):
            answer = failed(other, rows, losses, within)
            answer.step, answer.line = before[0][0], line_of(there, before[0][0])
            answer.ranks, answer.tensor, answer.looked_at = list(range(world_size)), other.tensor, equal
            if other.apart < clear:
                return untold(NAME, f"{answer.says}; this may be rounding")
            drawn = sorted({short(site) for rank in (*there, *here) for site in rank["loose"]})
            if drawn and any(draw_apart(*pair) for pair in zip(there, here, before, after, strict=True)):
                return untold(NAME, f"{answer.says}; but the ranks draw numbers of their own at {', '.join(drawn)}")
            return answer
        elif equal > 1:
            return Answer(NAME, HELD, f"up to update {before[0][0] - 1}; from there on they train on other rows",
                          looked_at=equal)
        else:
            return untold(NAME, f"given each other's batches, the ranks train on other rows at update {before[0][0]}")
    if not equal:
        return untold(NAME, "with each other's batches the ranks update other parameters")
    return Answer(NAME, HELD, f"at {equal} updates", looked_at=equal)


def are_same(a: Any, b: Any, within: float) -> bool | None:
    """Whether a model was given the same rows; None where none was called."""
    rows, others = rows_in([a]), rows_in([b])
    return None if rows is None or others is None else distance(rows, others, 1) <= within


def makes_others(rank: dict[str, Any], own: Any, now: Any, within: float) -> bool:
    """Whether a rank makes other rows of the samples that it is given, and does not look them up by what it is given,
    or take the same as with its own batches."""
    return rank["samples"] and not are_same(own, now, within)


def failed(other: Gap, rows: list[bool | None], losses: list[tuple[float, float]], within: float) -> Answer:
    last = len(rows) - 1
    says = f"with each other's batches the ranks' gradient is {other.apart:.2g} apart, first in {other.tensor}; "
    if False in rows:
        rank = rows.index(False)
        return Answer(NAME, FAILS, f"{says}rank {rank} makes other rows of a batch than rank {last - rank}",
                      pitfalls=["samples-differ-across-ranks"])
    for rank, (a, b) in reversed(list(enumerate(losses))):
        if not near(a, b, within):
            return Answer(NAME, FAILS, f"{says}the loss of rank {last - rank}'s batch is {a:.6g} there and "
                          f"{b:.6g} on rank {rank}", pitfalls=["loss-weight-differs"])
    return Answer(NAME, FAILS, f"{says}the losses are the same", pitfalls=["gradient-not-the-mean"])
